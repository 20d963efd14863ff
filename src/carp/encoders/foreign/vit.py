"""Infers a vision transformer with a class token from the shapes of its tensors, and builds it.

Shapes: B images, H and W their sides, D width, N tokens, h and w patches along the sides.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from carp.errors import ModelError

_KEY = re.compile(
    r"cls_token|pos_embed|(patch_embed\.proj|norm|blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12]))\.(weight|bias)"
    r"|blocks\.\d+\.ls[12]\.gamma"
)
_NAMES = {(192, 12): "Ti", (384, 12): "S", (768, 12): "B", (1024, 24): "L", (1280, 32): "H"}
_TIMM = {
    (192, 12, 3): "vit_tiny_patch16_224",
    (384, 12, 6): "vit_small_patch16_224",
    (768, 12, 12): "vit_base_patch16_224",
    (1024, 24, 16): "vit_large_patch16_224",
}
_HEAD_WIDTH = 64
LARGE_HEADS = ((1152, 16), (1280, 16), (1408, 16), (1664, 16))


@dataclass(frozen=True)
class VitTraits:
    """The properties of a transformer that the shapes of its tensors do not show."""

    heads: tuple[tuple[int, int], ...] = LARGE_HEADS
    """Pairs of width and number of attention heads for widths where that number is not width / 64."""
    dino_positions: bool = False
    """Whether positions are interpolated for other image sizes as in DINO (no antialiasing, a scale that is a tenth of
    a patch larger) or as in timm (antialiased)."""


@dataclass(frozen=True)
class VitArchitecture:
    """The numbers that define a transformer."""

    width: int
    depth: int
    heads: int
    patch: int
    grid: int  # patches along a side of the training images
    hidden: int  # of the MLP
    qkv_bias: bool = True
    layer_scale: bool = False

    @property
    def image_size(self) -> int:
        """The side of the images that the position embeddings belong to."""
        return self.grid * self.patch

    def __str__(self) -> str:
        name = _NAMES.get((self.width, self.depth))
        known = f"ViT-{name}/{self.patch}" if name else f"ViT/{self.patch} of width {self.width}, {self.depth} blocks"
        scale = ", layer scale" if self.layer_scale else ""
        return f"{known} ({self.heads} heads, {self.image_size} px{scale})"


def is_vit_key(key: str) -> bool:
    """Return whether a plain transformer has a tensor of this name."""
    return _KEY.fullmatch(key) is not None


def vit_architecture_of(tensors: Mapping[str, Tensor], traits: VitTraits) -> VitArchitecture | str | None:
    """Infer the numbers of a transformer, or return why that fails; None if too many tensors are missing."""
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "cls_token")
    if not all(name in tensors for name in needed):
        return None
    patches, positions, hidden, _ = (tensors[name].shape for name in needed)
    if len(patches) != 4 or len(positions) != 3 or len(hidden) != 2 or 0 in (*patches, *positions, *hidden):
        return "tensors whose dimensions are not those of a transformer"
    width, patch, grid = patches[0], patches[-1], math.isqrt(max(positions[1] - 1, 0))
    heads = dict(traits.heads).get(width, width // _HEAD_WIDTH)
    if grid < 1 or grid * grid + 1 != positions[1]:
        return f"{positions[1]} positions, expected one per patch of a square image and one for the class token"
    if not heads or width % heads or (width not in dict(traits.heads) and width % _HEAD_WIDTH):
        return f"a width of {width}, from which the number of attention heads cannot be inferred"
    depth = 1 + max(int(key.split(".")[1]) for key in tensors if key.startswith("blocks."))
    bias, scale = (f"blocks.0.{name}" in tensors for name in ("attn.qkv.bias", "ls1.gamma"))
    if depth > len(tensors):
        return f"block {depth - 1} without the blocks before it"
    return VitArchitecture(width, depth, heads, patch, grid, hidden[0], bias, scale)


class VisionTransformer(nn.Module):
    """Maps images [B, 3, H, W] of any size to the class token [B, D] after the last norm. Tensors have timm's names."""

    def __init__(self, numbers: VitArchitecture, traits: VitTraits) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-6)  # as in DINO, MoCo-v3, DeiT and timm
        width, self.numbers, self.traits, self.num_features = numbers.width, numbers, traits, numbers.width
        projection = nn.Conv2d(3, width, numbers.patch, stride=numbers.patch)
        self.patch_embed = nn.Sequential(OrderedDict(proj=projection))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, numbers.grid**2 + 1, width))
        how = {"qkv_bias": numbers.qkv_bias, "init_values": 1e-5 if numbers.layer_scale else None, "norm_layer": norm}
        ratio = (numbers.hidden + 0.5) / width  # timm multiplies and rounds down
        self.blocks = nn.Sequential(*(Block(width, numbers.heads, ratio, **how) for _ in range(numbers.depth)))
        self.norm = norm(width)

    def extra_repr(self) -> str:
        """Return the properties that no tensor shows, for `repr` and the hash of the network."""
        return f"{self.numbers}, dino_positions={self.traits.dino_positions}"

    def forward(self, images: Tensor) -> Tensor:
        """Return the class token."""
        if min(images.shape[2:]) < self.numbers.patch:
            height, width = images.shape[2:]
            raise ModelError(
                f"an image of {width}×{height} is smaller than a patch of this encoder ({self.numbers}). Use larger "
                "images, or a larger --size."
            )
        patches: Tensor = self.patch_embed(images)
        tokens_BND = patches.flatten(2).transpose(1, 2)
        tokens_BND = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens_BND], dim=1)
        tokens_BND = tokens_BND + self._positions(patches.shape[2], patches.shape[3])
        features: Tensor = self.norm(self.blocks(tokens_BND))[:, 0]
        return features

    def _positions(self, height: int, width: int) -> Tensor:
        grid = self.numbers.grid
        if (height, width) == (grid, grid):
            return self.pos_embed
        if not self.traits.dino_positions:
            resampled: Tensor = resample_abs_pos_embed(self.pos_embed, [height, width], num_prefix_tokens=1)
            return resampled
        square = self.pos_embed[:, 1:].reshape(1, grid, grid, -1).permute(0, 3, 1, 2)
        factors = ((height + 0.1) / grid, (width + 0.1) / grid)
        other = F.interpolate(square, scale_factor=factors, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
        return torch.cat([self.pos_embed[:, :1], other], dim=1)


def timm_vit(numbers: VitArchitecture) -> tuple[str, dict[str, Any]]:
    """Return timm's name for this network, or for a similar one, and the arguments that make it the same."""
    name = _TIMM.get((numbers.width, numbers.depth, numbers.heads))
    options: dict[str, Any] = {}
    if name is None:
        name = "vit_base_patch16_224"
        options = {"embed_dim": numbers.width, "depth": numbers.depth, "num_heads": numbers.heads}
    if numbers.patch != 16:
        options["patch_size"] = numbers.patch
    if numbers.image_size != 224:
        options["img_size"] = numbers.image_size
    if numbers.hidden != 4 * numbers.width:
        options["mlp_ratio"] = (numbers.hidden + 0.5) / numbers.width
    if not numbers.qkv_bias:
        options["qkv_bias"] = False
    if numbers.layer_scale:
        options["init_values"] = 1e-5
    return name, options


@cache
def expected_vit_shapes(numbers: VitArchitecture) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that the transformer needs."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in VisionTransformer(numbers, VitTraits()).state_dict().items()}
