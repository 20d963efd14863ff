"""Builds an encoder from a released checkpoint; it takes images normalised as CARP normalises them."""

from pathlib import Path

import torch
from torch import Tensor, nn

from carp.encoders.foreign.architecture import COUNTER, build
from carp.encoders.foreign.methods import IMAGENET_MEAN, IMAGENET_STD, Three
from carp.encoders.foreign.recognise import ForeignWeights, read_foreign
from carp.encoders.foreign.vit import VisionTransformer, VitArchitecture
from carp.errors import CheckpointError


class OwnNormalisation(nn.Module):
    """Wraps an encoder trained with another mean and standard deviation, for images normalised with ImageNet's."""

    scale: Tensor
    shift: Tensor

    def __init__(self, encoder: nn.Module, mean: Three, std: Three) -> None:
        super().__init__()
        self.encoder, self.num_features = encoder, encoder.num_features
        ours = [torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)]
        theirs = [torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (mean, std)]
        self.register_buffer("scale", (ours[1] / theirs[1]).float(), persistent=False)
        self.register_buffer("shift", ((ours[0] - theirs[0]) / theirs[1]).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images normalised with ImageNet's mean and standard deviation."""
        features: Tensor = self.encoder(images * self.scale + self.shift)
        return features


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
    if isinstance(weights.architecture, VitArchitecture):
        encoder = VisionTransformer(weights.architecture, row.vit)
    else:
        encoder = build(weights.architecture, row.traits)
    report = encoder.load_state_dict(weights.tensors, strict=False)
    wrong = [name for name in report.missing_keys if not name.endswith(COUNTER)] + report.unexpected_keys
    if wrong:
        raise CheckpointError(
            f"{path} does not fit a {weights.architecture}: {wrong[0]} is missing or unexpected. `carp weights` lists "
            "the formats that CARP reads."
        )
    if (row.mean, row.std) != (IMAGENET_MEAN, IMAGENET_STD):
        encoder = OwnNormalisation(encoder, row.mean, row.std)
    return encoder.eval().requires_grad_(False), weights
