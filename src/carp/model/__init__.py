"""Encoder, projector, assigner, partition and loss: the method of the paper."""
