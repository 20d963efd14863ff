"""Encoders that `carp export` wrote, read again: what the file says of its network is enough to build it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from carp.config import resolve
from carp.errors import CarpError, CheckpointError
from carp.files.regular import check_regular
from carp.model.encoder import build_encoder
from carp.restricted.archive import pickle_contains
from carp.restricted.checkpoint_file import read_checkpoint

MARK = "carp"  # tells a file that CARP wrote from others
METADATA = "_metadata"  # where PyTorch keeps the versions of modules in a state dict; `load_state_dict` skips the rest
SIGNATURE = b'"written_by": "CARP '
# Arguments of timm's create_model that read weights: these come from the file, and it may not name others.
_READING = frozenset({"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"})


class About(BaseModel):
    """What a file says about its encoder."""

    architecture: str
    options: dict[str, Any]
    size: int = Field(ge=1)
    resize: int = Field(ge=1)
    origin: dict[str, Any]


@dataclass(frozen=True)
class CarpExport:
    """A file that `carp export` wrote."""

    path: Path
    about: About

    @property
    def method(self) -> str | None:
        """The row of the table of formats that the weights were read with; None if they are of a run."""
        method = self.about.origin.get("method")
        return None if method is None else str(method)


def read_own(path: Path) -> CarpExport | None:
    """What a safetensors file or torchvision's state dict says about itself; None if CARP did not write it."""
    text = _mark_in_safetensors(path) or _mark_in_state_dict(path)
    if text is None:
        return None
    try:
        return CarpExport(path, About.model_validate_json(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise CheckpointError(
            f"{path} has CARP's mark, but what it says about its encoder cannot be used ({where}: {first['msg']}). "
            "Export the encoder again."
        ) from error


def build_own(own: CarpExport) -> nn.Module:
    """The encoder of a run, with its weights, in evaluation mode."""
    about, tensors = own.about, read_checkpoint(own.path)
    try:
        with torch.device("meta"):  # no memory for a network that the tensors do not fill
            expected = _empty(about).state_dict()
        _compare(own.path, expected, tensors)
        _refuse_claims(own.path, tensors)
        encoder = _empty(about)
        encoder.load_state_dict(tensors)
    except CheckpointError:
        raise
    except (CarpError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{own.path} cannot be built as the {about.architecture} that it says it is: {' '.join(str(error).split())}"
        ) from error
    return encoder.eval()


def without_reading(options: dict[str, Any]) -> dict[str, Any]:
    """The options that say what a network is, not where weights are from."""
    return {name: value for name, value in options.items() if name not in _READING}


def _empty(about: About) -> nn.Module:
    values = {
        "encoder": about.architecture,
        "encoder_options": without_reading(about.options),
        "global_size": about.size,
        "stem": about.origin.get("stem", "encoder"),
        "stem_stride": about.origin.get("stem_stride", 1),
    }
    return build_encoder(resolve(values, num_images=0))


def _compare(path: Path, expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name in (*expected, *tensors):
        here, there = (list(state[name].shape) if name in state else "nothing" for state in (tensors, expected))
        if here != there:
            raise CheckpointError(f"{path} does not fit what it says about itself: {name} is {here}, expected {there}.")


def _refuse_claims(path: Path, tensors: dict[str, Tensor]) -> None:
    """One number that is repeated over a large shape would fill the memory."""
    held, size = sum(t.numel() * t.element_size() for t in tensors.values()), path.stat().st_size
    if held > size:
        raise CheckpointError(f"{path} is refused: its {size:,} bytes claim to hold {held:,} bytes of weights.")


def _mark_in_safetensors(path: Path) -> str | None:
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(MARK)
    except (OSError, SafetensorError):
        return None
    return None if text is None else str(text)


def _mark_in_state_dict(path: Path) -> str | None:
    """The bytes are searched for the mark before anything is read, since few files have it."""
    marked = pickle_contains(path, SIGNATURE)
    versions = getattr(read_checkpoint(path), METADATA, None) if marked else None
    first = versions.get("") if isinstance(versions, dict) else None
    text = first.get(MARK) if isinstance(first, dict) else None
    return text if isinstance(text, str) else None
