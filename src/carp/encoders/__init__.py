"""Loads encoders from runs, from released weights of other methods and from exports, and writes exports."""
