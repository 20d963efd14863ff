"""Infers a ResNet of any depth and width from the shapes of its tensors, and builds it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import torch
from timm.layers import Conv2dSame, create_pool2d
from timm.models.resnet import BasicBlock, Bottleneck, ResNet, make_blocks
from torch import Tensor, nn

from carp.encoders.foreign.cifar_resnet import CifarResNet

_KEY = re.compile(
    r"(conv1|bn1|layer[1-4]\.\d+\.(conv[123]|bn[123]|downsample\.[01]))"
    r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"
)
_BLOCK = re.compile(r"layer(\d)\.(\d+)\.")
_NAMES: dict[tuple[bool, tuple[int, ...]], str] = {
    (False, (2, 2, 2, 2)): "ResNet-18",
    (False, (3, 4, 6, 3)): "ResNet-34",
    (True, (3, 4, 6, 3)): "ResNet-50",
    (True, (3, 4, 23, 3)): "ResNet-101",
    (True, (3, 8, 36, 3)): "ResNet-152",
}
_TIMM_NAMES: dict[tuple[bool, tuple[int, ...]], str] = {
    (False, (2, 2, 2, 2)): "resnet18",
    (False, (3, 4, 6, 3)): "resnet34",
    (True, (3, 4, 6, 3)): "resnet50",
    (True, (3, 4, 23, 3)): "resnet101",
    (True, (3, 8, 36, 3)): "resnet152",
}
COUNTER = "num_batches_tracked"  # of batch norm; a trained encoder does not need it


@dataclass(frozen=True)
class Traits:
    """The properties of a ResNet that the shapes of its tensors do not show."""

    stride_in_1x1: bool = False
    """Whether the first 1×1 convolution of a stage has the stride, as in the original paper, or its 3×3 convolution."""
    tensorflow_padding: bool = False
    """Whether strided layers pad more on the right and at the bottom, as TensorFlow's SAME does, or symmetrically."""
    eps: float = 1e-5
    """The epsilon of batch norm."""
    cifar: bool = False
    """Whether it is a CIFAR ResNet, whose shortcuts have no parameters."""


@dataclass(frozen=True)
class Architecture:
    """The numbers that define a ResNet."""

    bottleneck: bool
    depths: tuple[int, ...]
    channels: tuple[int, ...]  # per stage, before the expansion of a bottleneck
    stem: int  # channels
    stem_kernel: int
    cardinality: int = 1
    base_width: int = 64
    image_size: ClassVar[None] = None  # any size; its method defines one

    def __str__(self) -> str:
        if len(self.depths) == 3:
            return f"ResNet-{2 * sum(self.depths) + 2} for CIFAR ({'-'.join(map(str, self.channels))} channels)"
        name = _NAMES.get((self.bottleneck, self.depths), f"ResNet with {'+'.join(map(str, self.depths))} blocks")
        wide = "" if self.channels == (64, 128, 256, 512) else f", {'-'.join(map(str, self.channels))} channels"
        groups = "" if self.cardinality == 1 else f", {self.cardinality} groups"
        inner = "" if self.base_width == 64 else f", base width {self.base_width}"
        return name + wide + groups + inner


def is_encoder_key(key: str) -> bool:
    """Return whether the encoder of a ResNet has a tensor of this name."""
    return _KEY.fullmatch(key) is not None


def architecture_of(tensors: Mapping[str, Tensor]) -> Architecture | None:
    """Infer the numbers of a ResNet from its tensors; return None if too many tensors are missing."""
    depths = [0, 0, 0, 0]
    for key in tensors:
        if match := _BLOCK.match(key):
            stage = int(match[1]) - 1
            depths[stage] = max(depths[stage], int(match[2]) + 1)
    stages = 3 if depths[3] == 0 else 4
    stem = tensors.get("conv1.weight")
    if stem is None or stem.ndim != 4 or 0 in depths[:3]:
        return None
    bottleneck = any(key.endswith("conv3.weight") for key in tensors)
    expansion, last = (4, "conv3") if bottleneck else (1, "conv2")
    channels = []
    for stage in range(1, stages + 1):
        widths = [
            _shape(t)[0] for key, t in tensors.items() if re.fullmatch(rf"layer{stage}\.\d+\.{last}\.weight", key)
        ]
        if not widths or widths[0] < expansion:
            return None
        channels.append(widths[0] // expansion)
    groups, base_width = _grouping(tensors, channels[0]) if bottleneck else (1, 64)
    kernel = stem.shape[-1]
    return Architecture(bottleneck, tuple(depths[:stages]), tuple(channels), stem.shape[0], kernel, groups, base_width)


def build(architecture: Architecture, traits: Traits) -> nn.Module:
    """Build the network without its classifier, with random parameters."""
    if traits.cifar:
        encoder: nn.Module = CifarResNet(architecture.depths, architecture.channels)
    else:
        encoder = _build_resnet(architecture)
    if traits.stride_in_1x1:
        _move_strides(encoder)
    if traits.tensorflow_padding:
        _pad_as_tensorflow(encoder)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = traits.eps
    return encoder


def timm_resnet(found: Architecture) -> tuple[str, dict[str, Any]]:
    """Return timm's name for this network, or for a similar one, and the arguments that make it the same."""
    name = _TIMM_NAMES.get((found.bottleneck, found.depths))
    options: dict[str, Any] = {} if name else {"layers": list(found.depths)}
    if found.channels != (64, 128, 256, 512):
        options["channels"] = list(found.channels)
    if found.cardinality != 1:
        options["cardinality"] = found.cardinality
    if found.base_width != 64:
        options["base_width"] = found.base_width
    return name or ("resnet50" if found.bottleneck else "resnet18"), options


@cache
def expected_shapes(architecture: Architecture, traits: Traits) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that the encoder needs."""
    with torch.device("meta"):
        state = build(architecture, traits).state_dict()
    return {name: _shape(tensor) for name, tensor in state.items() if not name.endswith(COUNTER)}


def _build_resnet(architecture: Architecture) -> nn.Module:
    block = Bottleneck if architecture.bottleneck else BasicBlock
    how = {"cardinality": architecture.cardinality, "base_width": architecture.base_width}
    encoder = ResNet(block, architecture.depths, num_classes=0, channels=architecture.channels, **how)
    if architecture.stem != 64:  # timm's stem has 64 channels; that of other widths does not
        encoder.conv1 = nn.Conv2d(3, architecture.stem, 7, stride=2, padding=3, bias=False)
        encoder.bn1 = nn.BatchNorm2d(architecture.stem)
        blocks = (block,) * len(architecture.depths)
        stages, _ = make_blocks(blocks, architecture.channels, architecture.depths, architecture.stem, **how)
        for name, stage in stages:
            setattr(encoder, name, stage)
    return cast(nn.Module, encoder)


def _move_strides(encoder: nn.Module) -> None:
    """Move the stride of a stage from its 3×3 convolution to its first 1×1 convolution."""
    for module in encoder.modules():
        if isinstance(module, Bottleneck):
            first, second = cast(Any, module).conv1, cast(Any, module).conv2
            first.stride, second.stride = second.stride, first.stride


def _pad_as_tensorflow(encoder: nn.Module) -> None:
    for name, module in list(encoder.named_modules()):
        if isinstance(module, nn.Conv2d) and module.stride != (1, 1) and module.kernel_size != (1, 1):
            channels, how = (module.in_channels, module.out_channels), {"groups": module.groups, "bias": False}
            same = Conv2dSame(*channels, module.kernel_size, module.stride, **how)
            encoder.set_submodule(name, same)
    cast(Any, encoder).maxpool = create_pool2d("max", 3, stride=2, padding="same")


def _grouping(tensors: Mapping[str, Tensor], channels: int) -> tuple[int, int]:
    """Return the groups of the 3×3 convolutions and timm's base width, the width of a group for 64 channels."""
    inner = tensors.get("layer1.0.conv2.weight")
    if inner is None or inner.ndim != 4 or 0 in inner.shape:
        return 1, 64
    groups = max(1, inner.shape[0] // inner.shape[1])
    return groups, max(1, inner.shape[0] // groups * 64 // channels)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape) or (0,)
