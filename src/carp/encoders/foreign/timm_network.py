"""A network of timm by its name: the tensors that it needs, and the images that its weights were trained on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from carp.model.timm_options import create_timm


@dataclass(frozen=True)
class TimmNetwork:
    """A name and the arguments that describe a network; two equal ones are the same network."""

    name: str
    arguments: str = "{}"  # of timm, as JSON
    image_size: ClassVar[None] = None  # its method defines one

    @property
    def options(self) -> dict[str, Any]:
        """Timm's arguments."""
        found: dict[str, Any] = json.loads(self.arguments)
        return found

    def __str__(self) -> str:
        return self.name + (f" with {self.arguments}" if self.options else "")

    def build(self) -> nn.Module:
        """Build the network without its classifier, with random parameters."""
        return create_timm(self.name, self.options)


def timm_network(name: str, options: Mapping[str, Any] | None = None) -> TimmNetwork:
    """Describe a network of timm; a plain vision transformer also takes images of other sizes."""
    given = dict(options or {})
    plain = TimmNetwork(name, json.dumps(given, sort_keys=True))
    with torch.device("meta"):
        is_vit = isinstance(plain.build(), VisionTransformer)
    any_size = {"dynamic_img_size": True, **given}
    return TimmNetwork(name, json.dumps(any_size, sort_keys=True)) if is_vit else plain


@cache
def expected_timm_shapes(network: TimmNetwork) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of floating-point numbers; others follow from the architecture."""
    with torch.device("meta"):
        state = network.build().state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if tensor.is_floating_point()}


def pretrained_images(name: str) -> dict[str, Any]:
    """Return timm's description of the images that its own weights of this name take; empty if it has none."""
    found = timm.get_pretrained_cfg(name)
    return {} if found is None else dict(found.to_dict())
