"""`carp export`: an encoder in the format of another library, verified there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carp.encoders.exports import BY_NAME, open_exportable, write_verified
from carp.errors import ConfigError, nearest
from carp.files.outputs import check_output_file, check_output_folder


@dataclass(frozen=True)
class Exported:
    """What was written, and what to know about it."""

    path: Path
    format: str
    difference: float
    """Of the features of what was written, read back, from the encoder's own; as a share of the largest feature."""
    about: dict[str, Any]
    """Architecture, side and normalisation of the images, origin of the weights."""
    use: str
    """How to load it."""

    def lines(self) -> list[str]:
        """For a person."""
        mean, std = self.about["mean"], self.about["std"]
        return [
            f"{self.format}: {self.path}   read back, features differ by {self.difference:.1e} of the largest",
            f"images: {self.about['size']} px, mean {mean}, std {std}; features: {self.about['num_features']}",
            f"resize: {self.about['resize_rule']}",
            f"use: {self.use}",
        ]


def export(model: str | Path, out: str | Path, *, format: str, branch: str = "teacher") -> Exported:
    """Write the encoder of a run, or weights of another method, for another library.

    Args:
        model: A run folder, or weights: FILE or METHOD:FILE (`carp weights`).
        out: The file, or for timm the folder. Only what CARP exported before is replaced.
        format: `torchvision`, `timm`, `safetensors`, `onnx` or `detectron2` (docs/export.md).
        branch: Which encoder of a run.
    """
    if format not in BY_NAME:
        raise ConfigError(f"there is no format '{format}'.{nearest(format, BY_NAME)} Formats: {', '.join(BY_NAME)}.")
    row = BY_NAME[format]
    (check_output_file if row.suffix else check_output_folder)(out)
    exportable = open_exportable(model, branch)
    written = write_verified(exportable, row, Path(out).expanduser())
    use = row.use.format(path=written.path, network=exportable.architecture)
    return Exported(written.path, format, written.difference, exportable.about(), use)
