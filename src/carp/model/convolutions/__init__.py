"""Convolutions that oneDNN computes wrongly or slowly on a CPU, computed another way."""
