"""Vision transformers of timm: views of several sizes, and patches that fit into them."""

from collections.abc import Mapping
from typing import Any

from timm.models import is_model_in_modules
from torch import nn

from carp.errors import ModelError

_MODULES = ["vision_transformer", "deit"]  # of timm: their networks take `img_size` and `dynamic_img_size`


def with_view_sizes(name: str, options: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the options of a timm network; a ViT has positions for `size` and interpolates them for other sizes."""
    if not is_model_in_modules(name, _MODULES):
        return dict(options)
    return {"img_size": size, "dynamic_img_size": True, **options}


def patch_size(encoder: nn.Module) -> int | None:
    """Return the side of a patch if views must be a multiple of it."""
    embed = getattr(encoder, "patch_embed", None)
    sides = getattr(embed, "patch_size", None)
    if not isinstance(sides, tuple) or getattr(embed, "dynamic_img_pad", False):
        return None
    return int(max(sides))


def check_patches(encoder: nn.Module, name: str, sizes: Mapping[str, int]) -> None:
    """Raise if the side of a view, by the name of its setting, is not a whole number of patches."""
    patch = patch_size(encoder) or 1
    for key, size in sizes.items():
        if size % patch:
            below, above = size // patch * patch, (size // patch + 1) * patch
            fits = f"{below} or {above}" if below else str(above)
            raise ModelError(
                f"{key} must be a multiple of {patch}, the patch size of the encoder '{name}', received {size}. "
                f"Use {fits}."
            )
