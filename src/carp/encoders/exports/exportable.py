"""An encoder to be exported, with the description that other libraries need."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from carp._version import __version__
from carp.config import IMAGENET_MEAN, IMAGENET_STD, EncoderSettings
from carp.encoders.foreign import ForeignWeights, foreign_encoder
from carp.encoders.foreign.architecture import timm_resnet
from carp.encoders.foreign.timm_network import TimmNetwork
from carp.encoders.foreign.vit import VitArchitecture, timm_vit
from carp.encoders.layers import tensors_hash, weights_hash
from carp.encoders.load import load
from carp.encoders.model_argument import is_weights, split_weights
from carp.encoders.read_export import CarpExport, build_own, read_own, without_reading
from carp.errors import CheckpointError
from carp.features.extract import default_resize
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation
from carp.model.encoder import num_features, timm_options
from carp.model.own_normalisation import without_normalisation
from carp.runs.run_folder import open_run

Three = tuple[float, float, float]


@dataclass(frozen=True)
class ExportableEncoder:
    """A network that maps images [B, 3, H, W], normalised with its `mean` and `std`, to features [B, F]."""

    module: nn.Module
    """The network, on the CPU and in evaluation mode."""
    size: int
    resize: int
    architecture: str
    """timm's name."""
    options: dict[str, Any]
    """timm's arguments for it."""
    origin: dict[str, Any]
    """Where the weights come from."""
    mean: Three = IMAGENET_MEAN
    std: Three = IMAGENET_STD
    interpolation: Interpolation = DEFAULT_INTERPOLATION
    card: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Further files of a folder for the Hugging Face Hub."""
    any_size: bool = True
    """Whether to compare images of other sizes; libraries interpolate the positions of a ViT differently."""

    @property
    def num_features(self) -> int:
        """F, the length of the features."""
        return num_features(self.module)

    @property
    def resize_rule(self) -> str:
        """How an image of any size is brought to `size`, as torchvision's transforms of PIL images."""
        steps = f"Resize({self.resize}, interpolation={self.interpolation.upper()}), CenterCrop({self.size})"
        return f"{steps}: the shorter side becomes {self.resize} pixels with antialiasing, then the centre is cut"

    def about(self) -> dict[str, Any]:
        """Return the description of the encoder that exported files contain."""
        return {
            "architecture": self.architecture,
            "options": self.options,
            "num_features": self.num_features,
            "size": self.size,
            "resize": self.resize,
            "resize_rule": self.resize_rule,
            "mean": list(self.mean),
            "std": list(self.std),
            "interpolation": self.interpolation,
            "origin": self.origin,
            "tensors_sha256": tensors_hash(self.module.state_dict()),
            "written_by": f"CARP {__version__}",
        }

    def about_text(self) -> str:
        """Return the description as one line of JSON."""
        return json.dumps(self.about())


def open_exportable(model: str | Path, branch: str = "teacher") -> ExportableEncoder:
    """Open the encoder of a run folder or of a weights file (`FILE`, `METHOD:FILE`)."""
    if is_weights(model):
        method, file = split_weights(model)
        own = None if method else read_own(file.expanduser())
        if own is not None and own.method is None:
            return _of_export(own)
        return _of_weights(*foreign_encoder(file.expanduser(), method or (own.method if own else None), branch))
    if branch == "raw pixels":
        raise CheckpointError("branch 'raw pixels' has no encoder to export. Give teacher, student or untrained.")
    encoder, run = load(model, branch, device="cpu"), open_run(model)
    origin = {
        "run": encoder.name,
        "branch": branch,
        "epochs": encoder.epochs,
        **({} if encoder.epoch is None else {"epoch": encoder.epoch}),
        "images": run.info["data"]["name"],
        "weights": encoder.hash,
    }
    config = run.config
    module = without_normalisation(encoder.module).requires_grad_(False)
    return ExportableEncoder(
        module,
        encoder.size,
        encoder.resize,
        config.encoder,
        without_reading(timm_options(config)),
        origin | _stem(config),
        config.mean,
        config.deviation,
        config.interpolation,
    )


def _of_export(own: CarpExport) -> ExportableEncoder:
    """Open an encoder that was exported before, to export it in another format."""
    module, about = build_own(own).requires_grad_(False), own.about
    return ExportableEncoder(
        module,
        about.size,
        about.resize,
        about.architecture,
        without_reading(about.options),
        about.origin,
        about.mean,
        about.std,
        about.interpolation,
    )


def _stem(config: EncoderSettings) -> dict[str, Any]:
    """Return what `build_encoder` needs to build the stem again; timm's own stem needs nothing."""
    return {} if config.stem == "encoder" else {"stem": config.stem, "stem_stride": config.stem_stride}


def _of_weights(module: nn.Module, weights: ForeignWeights) -> ExportableEncoder:
    """Open the network without its normalisation, which exported files describe by numbers."""
    found, row = weights.architecture, weights.method
    inner = without_normalisation(module)
    origin = {"file": weights.path.name, "sha256": weights.sha256, "method": row.name, "weights": weights_hash(module)}
    origin |= {"branch": weights.branch} if weights.branch else {}
    if isinstance(found, VitArchitecture):
        size, (architecture, options) = weights.size, timm_vit(found)
        resize = default_resize(size)
        return ExportableEncoder(inner, size, resize, architecture, options, origin, row.mean, row.std, any_size=False)
    if isinstance(found, TimmNetwork):
        del origin["method"]  # the export has timm's names, so it is read by its own description
        images = (row.size, default_resize(row.size), found.name, found.options)
        return ExportableEncoder(inner, *images, origin, row.mean, row.std, row.interpolation)
    architecture, options = timm_resnet(found)
    if row.traits.cifar:
        architecture = str(found)
    return ExportableEncoder(
        inner, row.size, default_resize(row.size), architecture, options, origin, row.mean, row.std
    )
