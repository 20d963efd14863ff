"""Encoder, projector, assigner, partition and loss: the paper's figure in code."""
