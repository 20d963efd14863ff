"""Trained encoders and the vectors they give."""
