"""Encoders for other libraries: written in their formats, reloaded there, and compared before a file gets its name."""

from carp.features.portable.encoder import Portable, open_portable
from carp.features.portable.formats import BY_NAME, FORMATS, Format
from carp.features.portable.write import Written, write_verified

__all__ = ["BY_NAME", "FORMATS", "Format", "Portable", "Written", "open_portable", "write_verified"]
