"""A folder for the Hugging Face Hub: timm's folder, which transformers reads as well, and a model card."""

from pathlib import Path

from carp.encoders.exports import timm_folder
from carp.encoders.exports.exportable import ExportableEncoder

CARD, PLOT = "README.md", "plots.png"
reload = timm_folder.reload


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Write timm's files, the model card and its plot."""
    timm_folder.write(exportable, path)
    for name, content in exportable.card.items():
        (path / name).write_bytes(content)


def is_carp_file(path: Path) -> bool:
    """Return whether the folder contains only the files of `write`."""
    return timm_folder.is_carp_folder(path, also={CARD, PLOT})
