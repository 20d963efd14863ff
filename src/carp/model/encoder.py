"""Builds any timm backbone without its classifier, with a stem that suits the image size."""

from collections.abc import Mapping
from typing import Any, cast

import timm
from timm.models import is_model_in_modules
from torch import nn

from carp.config import SMALL_IMAGE, EncoderSettings
from carp.errors import ModelError, nearest, received
from carp.model.timm_options import create_timm

_TRANSFORMERS = ["vision_transformer", "deit"]  # of timm; their networks take `img_size` and `dynamic_img_size`


def build_encoder(config: EncoderSettings) -> nn.Module:
    """Build the encoder f, which maps images [B, 3, H, W] to pooled features [B, F] with F = `num_features`."""
    name = config.encoder
    if not timm.is_model(name):
        known = timm.list_models()
        raise ModelError(
            f"encoder {received(name)} is not a timm model.{nearest(name, known)} "
            f"`python -c 'import timm; print(timm.list_models())'` lists all {len(known)}."
        )
    try:
        encoder: Any = create_timm(name, timm_options(config))
    except (MemoryError, ModelError):
        raise
    except Exception as error:  # unknown options can raise anything inside timm
        options, reason = received(config.encoder_options), " ".join(str(error).split())
        raise ModelError(
            f"timm cannot build '{name}' with encoder_options={options}: {type(error).__name__}, {reason}"
        ) from error
    if not hasattr(encoder, "num_features"):
        options = received(config.encoder_options)
        raise ModelError(f"'{name}' with encoder_options={options} has no pooled features. Remove these options.")
    check_patches(encoder, name, {"global_size": config.global_size})
    is_resnet = all(hasattr(encoder, part) for part in ("conv1", "bn1", "maxpool"))
    if config.stem == "small" and not is_resnet:
        raise ModelError(f"stem: small needs a ResNet; '{name}' has no conv1, bn1 and maxpool. Use stem: encoder.")
    if config.stem == "small" or (config.stem == "auto" and is_resnet and config.global_size <= SMALL_IMAGE):
        _use_small_stem(encoder, config)
    return cast(nn.Module, encoder)


def timm_options(config: EncoderSettings) -> dict[str, Any]:
    """Return the options that timm gets: those of the settings, and the view sizes of a vision transformer.

    Its positions are learned for `global_size` and interpolated for views of other sizes.
    """
    if not is_model_in_modules(config.encoder, _TRANSFORMERS):
        return config.encoder_options
    return {"img_size": config.global_size, "dynamic_img_size": True, **config.encoder_options}


def num_features(encoder: nn.Module) -> int:
    """Return F, the length of the pooled output."""
    return int(cast(Any, encoder).num_features)


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


def _use_small_stem(encoder: nn.Module, config: EncoderSettings) -> None:
    """Replace a ResNet's stem with one 3×3 convolution, and remove its max-pooling."""
    resnet = cast(Any, encoder)
    width = resnet.bn1.num_features
    resnet.conv1 = nn.Conv2d(3, width, 3, stride=config.stem_stride, padding=1, bias=False)
    nn.init.kaiming_normal_(resnet.conv1.weight, mode="fan_out", nonlinearity="relu")
    resnet.maxpool = nn.Identity()
