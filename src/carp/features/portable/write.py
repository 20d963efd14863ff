"""Write an encoder in a format, read it back in its library, compare features, and only then give it its name."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from carp.errors import CheckpointError
from carp.features.portable.encoder import Portable
from carp.features.portable.formats import Format, Network
from carp.features.portable.probes import probes
from carp.files import replacing

TOLERANCE = 1e-5  # of the largest feature


@dataclass(frozen=True)
class Written:
    """A file or folder that was verified."""

    path: Path
    difference: float
    """The largest difference of a feature, as a share of the largest feature."""


def write_verified(portable: Portable, form: Format, path: Path) -> Written:
    """Write, reload and compare; whatever goes wrong, `path` holds what it held before."""
    _refuse_to_replace(form, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            form.write(portable, unfinished)
            difference = _difference(portable, _reloaded(portable, form, unfinished))
            if difference > TOLERANCE:
                raise CheckpointError(
                    f"the {form.name} export was removed: read back, its features differ by {difference:.1e} of the "
                    f"largest feature, more than {TOLERANCE:.0e}. {_other(form)}"
                )
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}.") from error
    return Written(path, difference)


def _reloaded(portable: Portable, form: Format, path: Path) -> Network:
    try:
        return form.reload(portable, path)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the {form.name} export was removed: it cannot be read back ({reason}). {_other(form)}"
        ) from error


def _difference(portable: Portable, network: Network) -> float:
    """The largest over all probes."""
    largest = 0.0
    with torch.inference_mode():
        for images in probes(portable):
            ours = portable.module(images)
            theirs = network(images)
            if ours.shape != theirs.shape:
                return math.inf
            share = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-30))
            if math.isnan(share):
                return math.inf
            largest = max(largest, share)
    return largest


def _refuse_to_replace(form: Format, path: Path) -> None:
    if form.suffix and path.is_dir():
        raise CheckpointError(f"{path} is a folder: give a file for --format {form.name}, e.g. encoder{form.suffix}.")
    if not form.suffix and path.is_file():
        raise CheckpointError(f"{path} is a file: give a folder for --format {form.name}.")
    if path.exists() and not path.is_dir() and not path.is_file():
        raise CheckpointError(f"{path} is a pipe, a socket or a device: give a file or a folder with --out.")
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not form.is_own(path):
        raise CheckpointError(
            f"{path} exists and is no {form.name} export of CARP: it is not replaced. Give another --out."
        )


def _other(form: Format) -> str:
    return f"Take --format {'onnx' if form.name == 'safetensors' else 'safetensors'}."
