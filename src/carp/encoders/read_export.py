"""Reads encoders that `carp export` wrote; a file describes its network well enough to build it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from carp.config import IMAGENET_MEAN, IMAGENET_STD, EncoderSettings, resolve_part
from carp.config.field_types import Deviation, Mean
from carp.errors import CarpError, CheckpointError
from carp.files.regular import check_regular
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation
from carp.model.encoder import build_encoder
from carp.restricted.archive import pickle_contains
from carp.restricted.checkpoint_file import read_checkpoint, refuse_claims

MARK = "carp"  # identifies a file that CARP wrote
METADATA = "_metadata"  # where a state dict keeps the versions of modules; `load_state_dict` ignores other entries
SIGNATURE = b'"written_by": "CARP '
# Arguments of timm's create_model that load weights: the weights come from the file, which must not name others.
_READING = frozenset({"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"})


class About(BaseModel):
    """The description of the encoder in an exported file."""

    architecture: str
    options: dict[str, Any]
    size: int = Field(ge=1)
    resize: int = Field(ge=1)
    mean: Mean = IMAGENET_MEAN
    std: Deviation = IMAGENET_STD
    interpolation: Interpolation = DEFAULT_INTERPOLATION
    origin: dict[str, Any]


@dataclass(frozen=True)
class CarpExport:
    """A file that `carp export` wrote."""

    path: Path
    about: About

    @property
    def method(self) -> str | None:
        """The format that the weights were read with; None if they come from a run."""
        method = self.about.origin.get("method")
        return None if method is None else str(method)


def read_own(path: Path) -> CarpExport | None:
    """Read the description in a safetensors file or a state dict for torchvision; None if CARP did not write it."""
    text = _mark_in_safetensors(path) or _mark_in_state_dict(path)
    if text is None:
        return None
    try:
        return CarpExport(path, About.model_validate_json(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise CheckpointError(
            f"{path} was written by CARP, but the description of its encoder is invalid ({where}: {first['msg']}). "
            "Export the encoder again."
        ) from error


def build_own(own: CarpExport) -> nn.Module:
    """Build the encoder with its weights, in evaluation mode."""
    about, tensors = own.about, read_checkpoint(own.path)
    try:
        with torch.device("meta"):  # allocates nothing before the tensors are known to fit
            expected = _empty(about).state_dict()
        _compare(own.path, expected, tensors)
        refuse_claims(own.path, tensors.values(), "Export the encoder again.")
        encoder = _empty(about)
        encoder.load_state_dict(tensors)
    except CheckpointError:
        raise
    except (CarpError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{own.path} cannot be built as the {about.architecture} that it describes: {' '.join(str(error).split())}"
        ) from error
    return encoder.eval()


def without_reading(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that describe the network, without those that load weights."""
    return {name: value for name, value in options.items() if name not in _READING}


def _empty(about: About) -> nn.Module:
    values = {
        "encoder": about.architecture,
        "encoder_options": without_reading(about.options),
        "global_size": about.size,
        "stem": about.origin.get("stem", "encoder"),
        "stem_stride": about.origin.get("stem_stride", 1),
    }
    return build_encoder(resolve_part(EncoderSettings, values))


def _compare(path: Path, expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name in (*expected, *tensors):
        here, there = (list(state[name].shape) if name in state else "nothing" for state in (tensors, expected))
        if here != there:
            raise CheckpointError(
                f"{path} does not match its own description: {name} is {here}, expected {there}. Export the encoder "
                "again."
            )


def _mark_in_safetensors(path: Path) -> str | None:
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(MARK)
    except (OSError, SafetensorError):
        return None
    return None if text is None else str(text)


def _mark_in_state_dict(path: Path) -> str | None:
    """Return the description in a state dict; the bytes are searched for the mark first, because few files have it."""
    marked = pickle_contains(path, SIGNATURE)
    versions = getattr(read_checkpoint(path), METADATA, None) if marked else None
    first = versions.get("") if isinstance(versions, dict) else None
    text = first.get(MARK) if isinstance(first, dict) else None
    return text if isinstance(text, str) else None
