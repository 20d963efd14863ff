"""Rows of the table of weights that a user names: `timm:NAME` for a file, or a folder as the Hugging Face Hub has it.

Such a folder contains `config.json`, which names a network of timm and describes its images, and the weights in
`model.safetensors` or `pytorch_model.bin`. `carp export --format timm` writes the same.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm

from carp.config import IMAGENET_MEAN, IMAGENET_STD
from carp.encoders.foreign.methods import Layout, Method, Three
from carp.encoders.foreign.timm_network import TimmNetwork, pretrained_images, timm_network
from carp.errors import CarpError, CheckpointError, nearest, received
from carp.files.regular import read_regular
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation

TIMM = "timm"
_CONFIG, _WEIGHTS = "config.json", ("model.safetensors", "pytorch_model.bin")
_LARGEST_CONFIG = 2**20  # bytes
_INTERPOLATIONS: dict[Any, Interpolation] = {"bicubic": "bicubic", "bilinear": "bilinear"}
_ENTRIES = ("state_dict_ema", "model_ema", "", "state_dict", "model")
_HEADS = ("fc.", "head.", "classifier.", "head_dist.", "last_linear.", "n_averaged")


def row_of_name(name: str) -> Method:
    """Return the row of a file with the weights of a network of timm."""
    if not timm.is_model(name):
        raise CheckpointError(
            f"timm has no network '{name}'.{nearest(name, timm.list_models())} Write timm:NAME:FILE, with a name of "
            "timm.list_models()."
        )
    return _row(f"{TIMM}:{name}", timm_network(name), pretrained_images(name), "https://huggingface.co/timm")


def is_timm_folder(path: Path) -> bool:
    """Return whether a folder has a `config.json` and weights next to it."""
    return (path / _CONFIG).is_file() and any((path / name).is_file() for name in _WEIGHTS)


def row_of_folder(folder: Path) -> tuple[Method, Path]:
    """Return the row that a folder describes, and the file with its weights."""
    weights = next(folder / name for name in _WEIGHTS if (folder / name).is_file())
    try:
        config = json.loads(read_regular(folder / _CONFIG, _LARGEST_CONFIG))
        name, options, images = config["architecture"], config.get("model_args") or {}, config.get("pretrained_cfg", {})
        if not isinstance(name, str) or not isinstance(options, dict) or not isinstance(images, dict):
            raise TypeError("architecture, model_args or pretrained_cfg has the wrong type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{folder / _CONFIG} does not describe a network of timm ({type(error).__name__}: {error}). Give a folder "
            "or a repository with the weights of a timm model, or the weights file itself."
        ) from error
    if not timm.is_model(name):
        raise CheckpointError(f"{folder / _CONFIG} names the network {received(name)}, which timm does not have.")
    try:
        network = timm_network(name, {key: value for key, value in options.items() if key != "num_classes"})
    except CarpError:
        raise
    except Exception as error:  # unknown options can raise anything inside timm
        raise CheckpointError(
            f"{folder / _CONFIG} describes a network that timm cannot build: {' '.join(str(error).split())}"
        ) from error
    return _row(f"{TIMM}:{name}", network, {**pretrained_images(name), **images}, "https://huggingface.co"), weights


def _row(name: str, network: TimmNetwork, images: Mapping[str, Any], source: str) -> Method:
    layouts = tuple(Layout(entry, family="timm", network=network) for entry in _ENTRIES)
    return Method(
        name,
        f"{network.name} (timm)",
        layouts,
        source,
        _HEADS,
        mean=_three(images.get("mean"), IMAGENET_MEAN),
        std=_three(images.get("std"), IMAGENET_STD),
        size=_side(images.get("input_size")),
        interpolation=_INTERPOLATIONS.get(images.get("interpolation"), DEFAULT_INTERPOLATION),
    )


def _three(values: Any, default: Three) -> Three:
    """Return a mean or a deviation; the default unless there are three plausible numbers."""
    numbers = [float(v) for v in values if isinstance(v, int | float)] if isinstance(values, list | tuple) else []
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and all(-9 < v < 9 for v in numbers) else default


def _side(size: Any) -> int:
    last = size[-1] if isinstance(size, list | tuple) and size else None
    return last if isinstance(last, int) and 0 < last < 10_000 else Method.size
