"""Compares the structure of an encoder with that of a library's network, and names the first layer that differs."""

from collections.abc import Mapping
from functools import cache

import torch
import torchvision
from torch import nn

from carp.encoders.foreign.vit import VisionTransformer
from carp.errors import ModelError

_COMPUTING = (nn.Conv2d, nn.modules.batchnorm._BatchNorm, nn.Linear, nn.MaxPool2d, nn.AvgPool2d, nn.LayerNorm)
_RESNETS = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
    "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2",
)  # fmt: skip


def layers_of(module: nn.Module) -> dict[str, str]:
    """Return the layers that compute something, by name, with all their parameters."""
    return {name: repr(layer) for name, layer in module.named_modules() if isinstance(layer, _COMPUTING)}


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Describe the first layer that differs; None if all layers are equal."""
    for name in (*ours, *theirs):
        here, there = (layers.get(name, "nothing") for layers in (ours, theirs))
        if here != there:
            return f"{name} is {here} in the encoder but {there} in the library"
    return None


def torchvision_name(encoder: nn.Module) -> str:
    """Return the name of the torchvision network with the structure of the encoder; an error says what differs."""
    if isinstance(encoder, VisionTransformer):
        raise ModelError(
            "torchvision and detectron2 have no vision transformer with these tensors. Use --format timm, safetensors "
            "or onnx."
        )
    ours = layers_of(encoder)
    closest = max(_RESNETS, key=lambda name: len(ours.items() & _layers_in_torchvision(name).items()))
    difference = first_difference(ours, _layers_in_torchvision(closest))
    if difference is not None:
        raise ModelError(
            f"torchvision has no such network; the closest is {closest}: {difference}. "
            "Use --format safetensors or onnx; timm has networks of other widths and stems."
        )
    return closest


def torchvision_network(name: str) -> nn.Module:
    """Return the network without its classifier."""
    network: nn.Module = getattr(torchvision.models, name)(weights=None)
    network.fc = nn.Identity()
    return network


@cache
def _layers_in_torchvision(name: str) -> dict[str, str]:
    with torch.device("meta"):
        return layers_of(torchvision_network(name))
