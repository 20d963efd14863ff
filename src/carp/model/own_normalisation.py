"""Encoders that were trained with another mean and standard deviation than ImageNet's."""

import torch
from torch import Tensor, nn

from carp.config import IMAGENET_MEAN, IMAGENET_STD

Three = tuple[float, float, float]


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


def for_imagenet_images(encoder: nn.Module, mean: Three, std: Three) -> nn.Module:
    """Return an encoder that takes images normalised with ImageNet's mean and deviation: itself, or wrapped."""
    if (tuple(mean), tuple(std)) == (IMAGENET_MEAN, IMAGENET_STD):
        return encoder
    return OwnNormalisation(encoder, mean, std)


def without_normalisation(encoder: nn.Module) -> nn.Module:
    """Return the network inside `OwnNormalisation`, or the encoder itself."""
    return encoder.encoder if isinstance(encoder, OwnNormalisation) else encoder
