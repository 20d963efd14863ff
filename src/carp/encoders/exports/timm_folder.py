"""A folder for `timm.create_model("local-dir:FOLDER", pretrained=True)`, with config.json and model.safetensors."""

import json
import math
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import nn

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.same_network import first_difference, layers_of
from carp.encoders.read_export import MARK
from carp.errors import ModelError
from carp.files.regular import read_regular
from carp.model.timm_options import create_timm

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_LARGEST_CONFIG = 2**20  # bytes


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Write config.json and model.safetensors."""
    classifier = _timms_network(exportable).pretrained_cfg.get("classifier")
    path.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in exportable.module.state_dict().items()}, path / _WEIGHTS)
    (path / _CONFIG).write_text(json.dumps(_config(exportable, classifier), indent=1))


def reload(_exportable: ExportableEncoder, path: Path) -> nn.Module:
    """Load the network and its weights with timm."""
    network: nn.Module = timm.create_model(f"local-dir:{path.resolve()}", pretrained=True)
    return network.eval()


def is_carp_file(path: Path) -> bool:
    """Return whether the folder contains only the files of `write`."""
    return is_carp_folder(path, also=set())


def is_carp_folder(path: Path, *, also: set[str]) -> bool:
    """Return whether the folder contains the files of `write`, and no others but some of `also`."""
    try:
        names = {file.name for file in path.iterdir()}
        config = json.loads(read_regular(path / _CONFIG, _LARGEST_CONFIG))
        return {_CONFIG, _WEIGHTS} <= names <= {_CONFIG, _WEIGHTS, *also} and MARK in config
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _config(exportable: ExportableEncoder, classifier: Any) -> dict[str, Any]:
    side = [3, exportable.size, exportable.size]
    return {
        "architecture": exportable.architecture,
        "num_classes": 0,
        "num_features": exportable.num_features,
        "model_args": exportable.options,
        "pretrained_cfg": {
            "input_size": side,
            "interpolation": exportable.interpolation,
            "crop_pct": _crop_pct(exportable.size, exportable.resize),
            "crop_mode": "center",
            "mean": exportable.mean,
            "std": exportable.std,
            "num_classes": 0,
            "pool_size": None,
            "first_conv": None,
            "classifier": classifier,  # the name of the classifier that timm adds if num_classes is given
        },
        MARK: exportable.about(),
    }


def _crop_pct(size: int, resize: int) -> float:
    """Return the ratio from which timm computes `resize` by dividing and rounding down."""
    share = size / resize
    return share if math.floor(size / share) == resize else size / (resize + 0.25)


def _timms_network(exportable: ExportableEncoder) -> Any:
    """Build timm's network on the meta device; raise an error if it differs from the encoder."""
    name = exportable.architecture
    if not timm.is_model(name):
        raise ModelError(f"timm has no {name}. Use --format safetensors or onnx.")
    with torch.device("meta"):
        theirs: Any = create_timm(name, exportable.options)
    difference = first_difference(layers_of(exportable.module), layers_of(theirs))
    if difference is not None:
        raise ModelError(
            f"timm cannot build this network from a name: in its {name}, {difference}. "
            "Use --format safetensors or onnx."
        )
    return theirs
