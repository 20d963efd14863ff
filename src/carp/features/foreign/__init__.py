"""Weights that others released: a table of formats, a reader that runs nothing, encoders ready for use."""

from carp.features.foreign.encoder import foreign_encoder
from carp.features.foreign.recognise import ForeignWeights, read_foreign
from carp.features.foreign.table import BY_NAME, METHODS, Method

__all__ = ["BY_NAME", "METHODS", "ForeignWeights", "Method", "foreign_encoder", "read_foreign"]
