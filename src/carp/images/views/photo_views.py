"""Views of one photograph at a time: the work of a loader's worker.

A photograph is decoded once for all its views. The crops are drawn first, from the size in the header, so that a large
JPEG is decoded no larger than its views need. A crop is resized with PyTorch, whose antialiased resize is Pillow's
with SIMD, and coloured with OpenCV, in bytes throughout. Every operation equals torchvision's up to
rounding.
"""

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from cv2.typing import MatLike
from torch import Tensor
from torch.nn import functional as F

from carp.images.decoding.decode import Photo, Pixels, Stored, open_photo
from carp.images.views.interpolation import Interpolation
from carp.images.views.view_parameters import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    Boxes,
    ViewKind,
    ViewParameters,
    draw_views,
)

_GREY = np.array([0.299, 0.587, 0.114])
_SOLARISED = np.array([x if x < 128 else 255 - x for x in range(256)], dtype=np.uint8)
_REDUCTIONS = (8, 4, 2)


def without_threads() -> None:
    """Make OpenCV use a single thread: the workers are the parallelism, and a view is too small for threads.

    Call this before workers are forked: otherwise OpenCV would wait there for threads that only the parent has.
    """
    if cv2.getNumThreads() != 1:
        cv2.setNumThreads(1)


def photo_views(
    stored: Stored, place: str, kinds: Sequence[ViewKind], *, seed: int, epoch: int, index: int
) -> list[Tensor]:
    """Return all views of one image, each bytes [3, size, size] in channels-last order; `place` names it in errors."""
    without_threads()
    photo = open_photo(stored, place)
    drawn = draw_views(kinds, seed=seed, epoch=epoch, index=index, height=photo.height, width=photo.width)
    pixels, boxes = _decode_for(photo, drawn.box, [kind.size for kind in kinds])
    return [
        torch.from_numpy(_render(pixels, boxes[view], kind, drawn, view)).permute(2, 0, 1)
        for view, kind in enumerate(kinds)
    ]


def _decode_for(photo: Photo, boxes: Boxes, sizes: list[int]) -> tuple[Pixels, Boxes]:
    """Return the smallest decoding in which every crop has at least as many pixels as its view, and the boxes in it."""
    room = (boxes[:, 2:] / np.array(sizes)[:, None]).min()
    reduce = next((n for n in _REDUCTIONS if n <= room), 1)
    pixels = np.require(photo.pixels(reduce), requirements=["C", "W"])  # as torch shares memory
    if reduce == 1 or pixels.shape[0] == photo.height:  # some images are always decoded at full size
        return pixels, boxes
    return pixels, _reduce(boxes, reduce)


def _reduce(boxes: Boxes, reduce: int) -> Boxes:
    """Return boxes (top, left, height, width) in an image of 1/`reduce` of the size, with rounded edges."""
    start = (boxes[:, :2] + reduce // 2) // reduce
    end = (boxes[:, :2] + boxes[:, 2:] + reduce // 2) // reduce
    return np.concatenate([start, end - start], axis=1)


def _render(photo: Pixels, box: Boxes, kind: ViewKind, drawn: ViewParameters, view: int) -> MatLike:
    """Return the bytes [size, size, 3] of one view."""
    x = _crop(photo, box, kind.size, kind.interpolation)
    if drawn.flip[view]:
        x = cv2.flip(x, 1)
    if drawn.jitter[view]:
        for operation in drawn.order[view]:
            x = _ADJUST[operation](x, float(drawn.factors[view, operation]))
    if drawn.grey[view]:
        x = cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    if drawn.blur[view]:
        x = _blur(x, float(drawn.sigma[view]))
    if drawn.solarise[view]:
        x = cv2.LUT(x, _SOLARISED)
    return x


def _crop(photo: Pixels, box: Boxes, size: int, interpolation: Interpolation = "bicubic") -> MatLike:
    """Crop, then resize, so that pixels outside the box have no influence."""
    top, left, height, width = box.tolist()
    cut = torch.from_numpy(photo[top : top + height, left : left + width])
    batch = cut[None].permute(0, 3, 1, 2)  # in this order torch sees channels-last, which is faster
    resized = F.interpolate(batch, (size, size), mode=interpolation, antialias=True)
    pixels: MatLike = resized.permute(0, 2, 3, 1)[0].numpy()
    return np.ascontiguousarray(pixels)


def _brightness(x: MatLike, factor: float) -> MatLike:
    return cv2.convertScaleAbs(x, alpha=factor)


def _contrast(x: MatLike, factor: float) -> MatLike:
    mean = cv2.mean(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY))[0]
    return cv2.addWeighted(x, factor, x, 0.0, (1 - factor) * mean)


def _saturation(x: MatLike, factor: float) -> MatLike:
    return cv2.transform(x, factor * np.eye(3) + (1 - factor) * _GREY)


def _hue(x: MatLike, shift: float) -> MatLike:
    """Rotate the hue by a fraction of the circle; as in Pillow, hues are bytes, which wrap around."""
    turn = round(shift * 256) % 256
    if turn == 0:
        return x
    hsv = cv2.cvtColor(x, cv2.COLOR_RGB2HSV_FULL)
    hsv[:, :, 0] += np.uint8(turn)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _blur(x: MatLike, sigma: float) -> MatLike:
    """Gaussian blur, mirrored at the border, with a kernel to three deviations (0.3% lies beyond)."""
    kernel = cv2.getGaussianKernel(2 * math.ceil(3 * sigma) + 1, sigma)
    return cv2.sepFilter2D(x, -1, kernel, kernel)  # GaussianBlur of bytes is slower and less exact


_ADJUST: dict[int, Callable[[MatLike, float], MatLike]] = {
    BRIGHTNESS: _brightness,
    CONTRAST: _contrast,
    SATURATION: _saturation,
    HUE: _hue,
}
