"""Builds an encoder from a released checkpoint; it takes images normalised as CARP normalises them."""

from pathlib import Path

from torch import nn

from carp.encoders.foreign.architecture import build
from carp.encoders.foreign.recognise import ForeignWeights, read_foreign
from carp.encoders.foreign.timm_network import TimmNetwork
from carp.encoders.foreign.vit import VisionTransformer, VitArchitecture
from carp.errors import CheckpointError
from carp.model.own_normalisation import for_imagenet_images


def foreign_encoder(
    path: str | Path, method: str | None = None, branch: str = "teacher"
) -> tuple[nn.Module, ForeignWeights]:
    """Return the encoder of a released checkpoint, in evaluation mode, and a description of its weights.

    It maps images [B, 3, H, W], normalised with ImageNet's mean and standard deviation whatever it was trained with, to
    pooled features [B, F] with F = `num_features`.
    """
    weights = read_foreign(path, method, branch)
    row = weights.method
    encoder: nn.Module
    if isinstance(weights.architecture, TimmNetwork):
        encoder = weights.architecture.build()
    elif isinstance(weights.architecture, VitArchitecture):
        encoder = VisionTransformer(weights.architecture, row.vit)
    else:
        encoder = build(weights.architecture, row.traits)
    report = encoder.load_state_dict(weights.tensors, strict=False)
    numbers = {name for name, tensor in encoder.state_dict().items() if tensor.is_floating_point()}
    wrong = [name for name in report.missing_keys if name in numbers] + report.unexpected_keys
    if wrong:
        raise CheckpointError(
            f"{path} does not fit a {weights.architecture}: {wrong[0]} is missing or unexpected. `carp weights` lists "
            "the formats that CARP reads."
        )
    encoder = for_imagenet_images(encoder, row.mean, row.std)
    return encoder.eval().requires_grad_(False), weights
