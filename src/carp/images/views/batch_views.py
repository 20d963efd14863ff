"""Views of a whole batch of small images at once, with tensor operations.

Crop, resize and flip are two small matrix products: a row of the matrix holds Pillow's weights of the source pixels
for one target pixel. The colour operations are torchvision's, without rounding to bytes in between. Between the
operations, images are stored as [B, S, 3, S], rows outermost, which suits both products.

Shapes: B images, S side of a view, H and W of the source.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.images.views.interpolation import Interpolation
from carp.images.views.view_parameters import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    ViewKind,
    ViewParameters,
    draw_view,
)

Integers = NDArray[np.int64]
_LARGEST_TABLE = 2**21  # weights; images of 32 pixels have half of that, and as many flipped
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
    """Return all views of a batch of images [B, H, W, 3], each a float tensor [B, 3, S, S] in [0, 1]."""
    _, height, width, _ = images.shape
    pixels_BH3W = torch.from_numpy(images).permute(0, 1, 3, 2).contiguous().float().div_(255)
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
        views.append(_render(pixels_BH3W, kind, drawn))
    return views


def _render(images_BH3W: Tensor, kind: ViewKind, drawn: ViewParameters) -> Tensor:
    x = _crop_and_flip(images_BH3W, kind.size, kind.interpolation, drawn)
    for position in range(4):
        for operation in (BRIGHTNESS, CONTRAST, SATURATION, HUE):
            chosen = drawn.jitter & (drawn.order[:, position] == operation)
            _apply(x, chosen, _ADJUST[operation], drawn.factors[:, operation])
    _apply(x, drawn.grey, lambda part, _: _luma(part).expand_as(part), drawn.sigma)
    _apply(x, drawn.blur, _blur, drawn.sigma)
    _apply(x, drawn.solarise, _solarise, drawn.sigma)
    return x.transpose(1, 2)


def _apply(x: Tensor, chosen: NDArray[np.bool_], operation, values: NDArray[np.float64]) -> None:  # type: ignore[no-untyped-def]
    """Apply an operation in place to the chosen images, each with its own value."""
    rows = np.flatnonzero(chosen)
    if len(rows):
        rows_t = torch.from_numpy(rows)
        value = torch.from_numpy(values[rows]).float().view(-1, 1, 1, 1)
        x.index_copy_(0, rows_t, operation(x.index_select(0, rows_t), value))


def _crop_and_flip(images_BH3W: Tensor, size: int, how: Interpolation, drawn: ViewParameters) -> Tensor:
    """Resample the boxes to size × size, [B, S, 3, S]; a flip reverses the target columns.

    With the colours between rows and columns, either is one matrix product per image.
    """
    B, H, _, W = images_BH3W.shape
    top, left, height, width = drawn.box.T
    rows_BSH = _weights(top, height, size, H, np.zeros_like(drawn.flip), how)
    columns_BSW = _weights(left, width, size, W, drawn.flip, how)
    x = torch.bmm(rows_BSH, images_BH3W.flatten(2)).view(B, size * 3, W)
    x = torch.bmm(x, columns_BSW.mT).clamp_(0, 1)
    return x.view(B, size, 3, size)


def _weights(
    start: Integers, length: Integers, size: int, source: int, flip: NDArray[np.bool_], how: Interpolation
) -> Tensor:
    """Return the weights [B, size, source], from a table if the images are so small that all boxes fit into one."""
    if source * source * size * source > _LARGEST_TABLE:
        return _resize_weights(start, length, size, source, flip, how)
    place = torch.from_numpy((flip * source + start) * source + length - 1)
    return _table(size, source, how).index_select(0, place)


@lru_cache(maxsize=4)
def _table(size: int, source: int, how: Interpolation) -> Tensor:
    """Return the weights of every box by flip, start and length; boxes that exceed the image are not used."""
    flip, start, length = (grid.ravel() for grid in np.meshgrid([False, True], *[np.arange(source)] * 2, indexing="ij"))
    return _resize_weights(start, length + 1, size, source, flip, how)


def _resize_weights(
    start: Integers, length: Integers, size: int, source: int, flip: NDArray[np.bool_], how: Interpolation
) -> Tensor:
    """Weights [B, size, source] of Pillow's antialiased resize of `length` pixels from `start`, or flipped."""
    scale = (length / size)[:, None]
    support = np.maximum(scale, 1.0)  # downscaling widens the kernel, which is the antialiasing
    target = (np.arange(size) + 0.5) * scale
    target = np.where(flip[:, None], target[:, ::-1], target)
    pixel = np.arange(source) - start[:, None]  # counted from the box, so that float32 is exact enough
    inside = (pixel >= 0) & (pixel < length[:, None])
    target_B1S, pixel_B1W, inside_B1W = (
        torch.from_numpy(values.astype(np.float32)).unsqueeze(1)
        for values in (target / support, (pixel + 0.5) / support, inside)
    )
    weights = _KERNELS[how]((pixel_B1W - target_B1S.mT).abs_()).mul_(inside_B1W)
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def _cubic(d: Tensor) -> Tensor:
    """Keys' cubic kernel with a = −1/2 (Pillow's) of the distances d >= 0.

    In u = max(1 − d, 0) and v = max(2 − d, 0) it is u²(1 − 2u) + v²(v − 1)/2, without case distinctions.
    """
    u, v = (1 - d).clamp_(min=0), (2 - d).clamp_(min=0)
    return (v * v).mul_(v.sub_(1)).mul_(0.5).addcmul_(u * u, u.mul_(-2).add_(1))


def _triangle(d: Tensor) -> Tensor:
    """Return the kernel of linear interpolation of the distances d >= 0."""
    return d.neg_().add_(1).clamp_(min=0)


_KERNELS: dict[Interpolation, Callable[[Tensor], Tensor]] = {"bicubic": _cubic, "bilinear": _triangle}


def _luma(x: Tensor) -> Tensor:
    r, g, b = x.unbind(2)
    return (_GREY[0] * r).add_(g, alpha=_GREY[1]).add_(b, alpha=_GREY[2]).unsqueeze(2)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp_(0, 1)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    mean = _luma(x).flatten(1).mean(dim=1).view(-1, 1, 1, 1)
    return (x * factor).add_(mean * (1 - factor)).clamp_(0, 1)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).add_(_luma(x).mul_(1 - factor)).clamp_(0, 1)


def _hue(x: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by a fraction of the circle, in HSV.

    A channel of HSV → RGB is v − c·clamp(2 − 6|k|, 0, 1) with k = n/6 + h brought into [−1/2, 1/2] and n = 3, 1, −1.
    """
    r, g, b = (channel.contiguous() for channel in x.unbind(2))
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    # `lerp` with weights 0 and 1 is exact and faster than `where`; so is a comparison that gives floats
    sixths = (r - g).add_(chroma, alpha=4)
    sixths.lerp_((b - r).add_(chroma, alpha=2), value.clone().eq_(g)).lerp_(g - b, value.clone().eq_(r))
    hue = sixths.div_(chroma.mul(6).clamp_(min=1e-12)).add_(shift.squeeze(2))
    k = hue.unsqueeze(2) + x.new_tensor([3 / 6, 1 / 6, -1 / 6]).view(3, 1)
    k = k.sub_(k.round()).abs_().mul_(-6).add_(2).clamp_(0, 1)
    return torch.addcmul(value.unsqueeze(2), k, chroma.unsqueeze(2), value=-1)


def _blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur as a matrix product from the left and the right; the kernel is renormalised at the border."""
    S = x.shape[-1]
    offset = torch.arange(S).float()
    distance_SS = (offset[:, None] - offset[None, :]) ** 2
    kernel_BSS = torch.exp(-distance_SS / (2 * sigma.view(-1, 1, 1) ** 2))
    kernel_BSS = (kernel_BSS / kernel_BSS.sum(dim=-1, keepdim=True))[:, None]
    return (kernel_BSS @ x.transpose(1, 2) @ kernel_BSS.mT).transpose(1, 2)


def _solarise(x: Tensor, _: Tensor) -> Tensor:
    return torch.where(x >= _SOLARISE_ABOVE, 1 - x, x)


_ADJUST = {BRIGHTNESS: _brightness, CONTRAST: _contrast, SATURATION: _saturation, HUE: _hue}
