"""Released weights of other methods: a table of formats, a reader that runs no code, and ready-to-use encoders."""

from carp.encoders.foreign.build import foreign_encoder
from carp.encoders.foreign.methods import BY_NAME, METHODS, Method
from carp.encoders.foreign.recognise import ForeignWeights, read_foreign

__all__ = ["BY_NAME", "METHODS", "ForeignWeights", "Method", "foreign_encoder", "read_foreign"]
