"""Views of a whole batch of small images at once, with tensor operations.

Crop, resize and flip are two small matrix products: a row of the matrix holds Pillow's bicubic weights of the source
pixels for one target pixel. The colour operations are torchvision's, without rounding to bytes in between.

Shapes: B images, S side of a view, H and W of the source.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.data.view_parameters import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    ViewKind,
    ViewParameters,
    draw_view,
)

_CUBIC_A = -0.5  # Pillow's bicubic
_GREY = (0.2989, 0.587, 0.114)
_SOLARISE_ABOVE = 128 / 255


def batch_views(
    images: NDArray[np.uint8],
    kinds: list[ViewKind],
    *,
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],
) -> list[Tensor]:
    """All views of a batch of images [B, H, W, 3], each a float tensor [B, 3, S, S] in [0, 1]."""
    _, height, width, _ = images.shape
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
    views = []
    for view, kind in enumerate(kinds):
        drawn = draw_view(
            kind,
            seed=seed,
            epoch=epoch,
            indices=indices,
            view=view,
            heights=np.full(len(indices), height),
            widths=np.full(len(indices), width),
        )
        views.append(_render(pixels, kind.size, drawn))
    return views


def _render(images: Tensor, size: int, drawn: ViewParameters) -> Tensor:
    x = _crop_and_flip(images, size, drawn)
    for position in range(4):
        for operation in (BRIGHTNESS, CONTRAST, SATURATION, HUE):
            chosen = drawn.jitter & (drawn.order[:, position] == operation)
            _apply(x, chosen, _ADJUST[operation], drawn.factors[:, operation])
    _apply(x, drawn.grey, lambda part, _: _luma(part).expand_as(part), drawn.sigma)
    _apply(x, drawn.blur, _blur, drawn.sigma)
    _apply(x, drawn.solarise, _solarise, drawn.sigma)
    return x


def _apply(x: Tensor, chosen: NDArray[np.bool_], operation, values: NDArray[np.float64]) -> None:  # type: ignore[no-untyped-def]
    """Apply an operation in place to the chosen images, each with its own value."""
    rows = np.flatnonzero(chosen)
    if len(rows):
        rows_t = torch.from_numpy(rows)
        value = torch.from_numpy(values[rows]).float().view(-1, 1, 1, 1)
        x[rows_t] = operation(x[rows_t], value)


def _crop_and_flip(images: Tensor, size: int, drawn: ViewParameters) -> Tensor:
    """Resample the boxes to size × size; a flip reverses the target columns."""
    top, left, height, width = (drawn.box[:, i].astype(np.float64) for i in range(4))
    rows_BSH = _bicubic_weights(top, height, size, images.shape[2])
    columns_BSW = _bicubic_weights(left, width, size, images.shape[3])
    flipped = torch.from_numpy(drawn.flip).view(-1, 1, 1)
    columns_BSW = torch.where(flipped, columns_BSW.flip(1), columns_BSW)
    x = torch.matmul(rows_BSH[:, None], images)
    return torch.matmul(x, columns_BSW[:, None].transpose(-1, -2)).clamp_(0, 1)


def _bicubic_weights(start: NDArray[np.float64], length: NDArray[np.float64], size: int, source: int) -> Tensor:
    """Weights [B, size, source] of Pillow's antialiased bicubic resize of `length` pixels from `start`."""
    scale = (length / size)[:, None, None]
    support = np.maximum(scale, 1.0)  # a downscale widens the kernel: that is the antialiasing
    centre = start[:, None, None] + (np.arange(size)[None, :, None] + 0.5) * scale
    pixel = np.arange(source)[None, None, :]
    inside = (pixel >= start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weights = torch.from_numpy(((pixel + 0.5 - centre) / support).astype(np.float32)).abs_()
    weights = _cubic(weights) * torch.from_numpy(inside)
    return weights / weights.sum(dim=-1, keepdim=True)


def _cubic(d: Tensor) -> Tensor:
    """Keys' cubic kernel of the distances d >= 0."""
    a = _CUBIC_A
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = (((d - 5) * d + 8) * d - 4) * a
    return torch.where(d < 1, near, torch.where(d < 2, far, 0.0))


def _luma(x: Tensor) -> Tensor:
    r, g, b = x.unbind(1)
    return (_GREY[0] * r + _GREY[1] * g + _GREY[2] * b).unsqueeze(1)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp_(0, 1)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    mean = _luma(x).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean.expand_as(x), x, factor).clamp_(0, 1)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_luma(x).expand_as(x), x, factor).clamp_(0, 1)


def _hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by a share of the circle, by way of HSV.

    A channel of HSV → RGB is v − c·clamp(min(k, 4 − k), 0, 1) with k = (n + 6h) mod 6 and n = 5, 3, 1.
    """
    value, minimum = x.amax(dim=1), x.amin(dim=1)
    chroma = value - minimum
    r, g, b = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sector = torch.where(value == r, (g - b) / safe, torch.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4))
    sector = sector + 6 * shift.squeeze(1)
    channels = []
    for n in (5.0, 3.0, 1.0):
        k = torch.remainder(sector + n, 6.0)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def _blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur as a matrix product on either side; the kernel is renormalised at the border."""
    S = x.shape[-1]
    offset = torch.arange(S).float()
    distance_SS = (offset[:, None] - offset[None, :]) ** 2
    kernel_BSS = torch.exp(-distance_SS / (2 * sigma.view(-1, 1, 1) ** 2))
    kernel_BSS = (kernel_BSS / kernel_BSS.sum(dim=-1, keepdim=True))[:, None]
    return kernel_BSS @ x @ kernel_BSS.transpose(-1, -2)


def _solarise(x: Tensor, _: Tensor) -> Tensor:
    return torch.where(x >= _SOLARISE_ABOVE, 1 - x, x)


_ADJUST = {BRIGHTNESS: _brightness, CONTRAST: _contrast, SATURATION: _saturation, HUE: _hue}
