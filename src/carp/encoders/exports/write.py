"""Writes an export, reads it back in its library and compares features before it gets its final name."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.formats import Format, Network
from carp.encoders.exports.probes import probes
from carp.errors import CheckpointError
from carp.files.atomic import replacing

TOLERANCE = 1e-5  # relative to the largest feature


@dataclass(frozen=True)
class Written:
    """A verified file or folder."""

    path: Path
    difference: float
    """The largest difference of a feature, relative to the largest feature."""


def write_verified(exportable: ExportableEncoder, format: Format, path: Path) -> Written:
    """Write, reload and compare; if anything goes wrong, `path` is unchanged."""
    _refuse_to_replace(format, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            format.write(exportable, unfinished)
            difference = _difference(exportable, _reloaded(exportable, format, unfinished))
            if difference > TOLERANCE:
                raise CheckpointError(
                    f"the {format.name} export was removed: its features, read back, differ by {difference:.1e} of the "
                    f"largest feature; the limit is {TOLERANCE:.0e}. {_other(format)}"
                )
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}. Give another --out.") from error
    return Written(path, difference)


def _reloaded(exportable: ExportableEncoder, format: Format, path: Path) -> Network:
    try:
        return format.reload(exportable, path)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the {format.name} export was removed: it cannot be read back ({reason}). {_other(format)}"
        ) from error


def _difference(exportable: ExportableEncoder, network: Network) -> float:
    """Return the largest relative difference over all probes."""
    largest = 0.0
    with torch.inference_mode():
        for images in probes(exportable):
            ours = exportable.module(images)
            theirs = network(images)
            if ours.shape != theirs.shape:
                return math.inf
            share = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-30))
            if math.isnan(share):
                return math.inf
            largest = max(largest, share)
    return largest


def _refuse_to_replace(format: Format, path: Path) -> None:
    if format.suffix and path.is_dir():
        raise CheckpointError(
            f"{path} is a folder. Give a file for --format {format.name}, e.g. encoder{format.suffix}."
        )
    if not format.suffix and path.is_file():
        raise CheckpointError(f"{path} is a file. Give a folder for --format {format.name}.")
    if path.exists() and not path.is_dir() and not path.is_file():
        raise CheckpointError(f"{path} is a pipe, a socket or a device. Give a file or a folder with --out.")
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not format.is_carp_file(path):
        raise CheckpointError(
            f"{path} exists but is not a {format.name} export of CARP, so it is not replaced. Give another --out."
        )


def _other(format: Format) -> str:
    return f"Use --format {'onnx' if format.name == 'safetensors' else 'safetensors'}."
