"""Builds any timm backbone without its classifier, with a stem that suits the image size."""

from typing import Any, cast

import timm
from torch import nn

from carp.config import SMALL_IMAGE, EncoderSettings
from carp.errors import ModelError, nearest, received
from carp.model.timm_options import create_timm
from carp.model.vision_transformer import check_patches, with_view_sizes


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
    """Return the options for timm: those of the settings and, for a vision transformer, the size of the images."""
    return with_view_sizes(config.encoder, config.encoder_options, config.global_size)


def num_features(encoder: nn.Module) -> int:
    """Return F, the length of the pooled output."""
    return int(cast(Any, encoder).num_features)


def _use_small_stem(encoder: nn.Module, config: EncoderSettings) -> None:
    """Replace a ResNet's stem with one 3×3 convolution, and remove its max-pooling."""
    resnet = cast(Any, encoder)
    width = resnet.bn1.num_features
    resnet.conv1 = nn.Conv2d(3, width, 3, stride=config.stem_stride, padding=1, bias=False)
    nn.init.kaiming_normal_(resnet.conv1.weight, mode="fan_out", nonlinearity="relu")
    resnet.maxpool = nn.Identity()
