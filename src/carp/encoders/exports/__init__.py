"""Exports encoders to other libraries. A file is reloaded in the library and compared before it gets its final name."""

from carp.encoders.exports.exportable import ExportableEncoder, open_exportable
from carp.encoders.exports.formats import BY_NAME, FORMATS, Format
from carp.encoders.exports.write import Written, write_verified

__all__ = ["BY_NAME", "FORMATS", "ExportableEncoder", "Format", "Written", "open_exportable", "write_verified"]
