"""`carp export`: an encoder in the format of another library, verified there."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carp.encoders.exports import BY_NAME, open_exportable, write_verified
from carp.encoders.model_argument import is_weights
from carp.errors import ConfigError, nearest
from carp.files.outputs import check_output_file, check_output_folder
from carp.runs.epoch_argument import at_epoch
from carp.runs.run_folder import open_run


@dataclass(frozen=True)
class Exported:
    """An encoder that was exported, reloaded and compared."""

    path: Path
    format: str
    difference: float
    """Between the features of the reloaded file and those of the encoder, as a share of the largest feature."""
    about: dict[str, Any]
    """Architecture, side and normalisation of the images, origin of the weights."""
    use: str
    """How to load it."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**vars(self), "path": str(self.path)}

    def lines(self) -> list[str]:
        """Describe the path, the images, the resizing and how to load the file."""
        mean, std = self.about["mean"], self.about["std"]
        return [
            f"{self.format}: {self.path}   verified: features differ by {self.difference:.1e} of the largest",
            f"images: {self.about['size']} px, mean {mean}, std {std}; features: {self.about['num_features']}",
            f"resize: {self.about['resize_rule']}",
            f"use: {self.use}",
        ]


def export(
    model: str | Path, out: str | Path, *, format: str, branch: str = "teacher", epoch: int | None = None
) -> Exported:
    """Write the encoder of a run, or weights of another method, for another library.

    Args:
        model: A run folder, `RUN@25`, or weights: FILE or METHOD:FILE (`carp weights`).
        out: The file, or for timm and hf the folder. An existing one is replaced only if CARP exported it.
        format: `torchvision`, `timm`, `hf`, `safetensors`, `onnx` or `detectron2` (docs/export.md).
        branch: Encoder of a run: `teacher` or `student`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.

    Returns:
        The path, how far the features of the reloaded file differ, and how to load it.
    """
    if format not in BY_NAME:
        raise ConfigError(f"there is no format '{format}'.{nearest(format, BY_NAME)} Formats: {', '.join(BY_NAME)}.")
    row = BY_NAME[format]
    (check_output_file if row.suffix else check_output_folder)(out)
    exportable = open_exportable(at_epoch(model, epoch), branch)
    if format == "hf":
        from carp.report.model_card import model_card

        run = None if is_weights(model) else open_run(at_epoch(model, epoch))
        exportable = replace(exportable, card=model_card(exportable, run))
    written = write_verified(exportable, row, Path(out).expanduser())
    use = row.use.format(path=written.path, network=exportable.architecture)
    return Exported(written.path, format, written.difference, exportable.about(), use)
