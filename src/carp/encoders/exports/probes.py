"""Images on which two copies of a network are compared: noise, and smooth images, which resemble photographs more.

Shapes: B images, H and W their sides.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from carp.encoders.exports.exportable import ExportableEncoder
from carp.random import key, uniforms

_BLOBS = 7  # colours along a side of a smooth image


def probes(exportable: ExportableEncoder) -> Iterator[Tensor]:
    """Yield batches of normalised images [B, 3, H, W] of different lengths and, if the network allows, sizes."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (exportable.mean, exportable.std))
    sizes = [(exportable.size, exportable.size), *([_other_size(exportable)] if takes_other_sizes(exportable) else [])]
    for count, (height, width) in zip((1, 2), reversed(sizes), strict=False):
        both = torch.cat([_noise(1, height, width), _smooth(count, height, width)])
        yield (both - mean) / std


def takes_other_sizes(exportable: ExportableEncoder) -> bool:
    """Return whether the network accepts images of another size; a vision transformer may not."""
    if not exportable.any_size:
        return False
    try:
        with torch.inference_mode():
            exportable.module(torch.zeros(1, 3, *_other_size(exportable)))
    except (RuntimeError, AssertionError, ValueError):
        return False
    return True


def _other_size(exportable: ExportableEncoder) -> tuple[int, int]:
    """Return a smaller size, which is faster, and which is neither square nor even."""
    return exportable.size - exportable.size // 4, exportable.size - exportable.size // 8 - 1


def _noise(count: int, height: int, width: int) -> Tensor:
    return _uniform(1, count, height, width)


def _smooth(count: int, height: int, width: int) -> Tensor:
    small = _uniform(2, count, _BLOBS, _BLOBS)
    return F.interpolate(small, (height, width), mode="bicubic", align_corners=False).clamp(0, 1)


def _uniform(kind: int, *shape: int) -> Tensor:
    """Return random numbers between 0 and 1, [B, 3, H, W]."""
    count, height, width = shape
    values = uniforms(key(kind, count), count * 3 * height * width)
    return torch.from_numpy(values).float().view(count, 3, height, width)
