"""The random parameters of views, drawn as arrays from (seed, epoch, index, view) alone.

Drawing is separate from rendering, so that single photographs and whole batches of small images get views from the same
distributions, and the same view in any process. The distributions are torchvision's RandomResizedCrop,
RandomHorizontalFlip, ColorJitter, RandomGrayscale, GaussianBlur and RandomSolarize.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from carp.config import ViewSettings
from carp.images.views.interpolation import Interpolation
from carp.random import Purpose, key, uniforms

_CROP_ATTEMPTS = 10
_LOG_RATIO = np.log(4 / 3)
_SIGMA = (0.1, 2.0)
_ORDERS = np.array(
    [[a, b, c, d] for a in range(4) for b in range(4) for c in range(4) for d in range(4)
     if len({a, b, c, d}) == 4]
)  # fmt: skip
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Boxes = NDArray[np.int64]  # [..., 4]: top, left, height, width of a crop in pixels


@dataclass(frozen=True)
class ViewKind:
    """The pipeline of one view of every image: first global, second global or local; or a plain crop."""

    size: int
    scale: tuple[float, float]
    flip: float
    jitter: float
    strength: tuple[float, float, float, float]  # brightness, contrast, saturation, hue
    grey: float
    blur: float
    solarise: float
    purpose: Purpose = Purpose.VIEW
    interpolation: Interpolation = "bicubic"


@dataclass(frozen=True)
class ViewParameters:
    """Drawn values, with one entry per image of a batch, or one entry per view of one image."""

    box: Boxes  # [B, 4]
    flip: BoolArray
    jitter: BoolArray
    factors: FloatArray  # [B, 4]: brightness, contrast, saturation, hue
    order: NDArray[np.int64]  # [B, 4]: which of the four comes first, second, …
    grey: BoolArray
    blur: BoolArray
    sigma: FloatArray
    solarise: BoolArray


def view_kinds(config: ViewSettings) -> list[ViewKind]:
    """Return one kind per view: the two global ones, then the local ones."""
    places = [0, 1] + [2] * config.local_views
    return [
        ViewKind(
            size=config.local_size if place == 2 else config.global_size,
            scale=config.local_scale if place == 2 else config.global_scale,
            flip=config.flip,
            jitter=config.jitter,
            strength=(config.brightness, config.contrast, config.saturation, config.hue),
            grey=config.grey,
            blur=config.blur[place],
            solarise=config.solarise[place],
            interpolation=config.interpolation,
        )
        for place in places
    ]


def crop_and_flip(size: int, interpolation: Interpolation = "bicubic") -> ViewKind:
    """Only a random crop and a flip, with torchvision's areas and shapes, for classifiers on a frozen encoder."""
    return ViewKind(
        size=size,
        scale=(0.08, 1.0),
        flip=0.5,
        jitter=0.0,
        strength=(0.0, 0.0, 0.0, 0.0),
        grey=0.0,
        blur=0.0,
        solarise=0.0,
        purpose=Purpose.GRID_CROP,
        interpolation=interpolation,
    )


@dataclass(frozen=True)
class _Chances:
    """Kinds of views as arrays, with one entry per kind."""

    low: FloatArray
    high: FloatArray
    flip: FloatArray
    jitter: FloatArray
    strength: FloatArray  # [kinds, 4]
    grey: FloatArray
    blur: FloatArray
    solarise: FloatArray
    purpose: NDArray[np.int64]


@lru_cache(maxsize=64)
def _chances(kinds: tuple[ViewKind, ...]) -> _Chances:
    return _Chances(
        low=np.array([kind.scale[0] for kind in kinds]),
        high=np.array([kind.scale[1] for kind in kinds]),
        flip=np.array([kind.flip for kind in kinds]),
        jitter=np.array([kind.jitter for kind in kinds]),
        strength=np.array([kind.strength for kind in kinds]),
        grey=np.array([kind.grey for kind in kinds]),
        blur=np.array([kind.blur for kind in kinds]),
        solarise=np.array([kind.solarise for kind in kinds]),
        purpose=np.array([kind.purpose for kind in kinds]),
    )


def draw_view(
    kind: ViewKind,
    *,
    seed: int,
    epoch: int,
    indices: ArrayLike,
    view: int,
    heights: ArrayLike,
    widths: ArrayLike,
) -> ViewParameters:
    """Draw the parameters of view number `view` for the images `indices` of the given pixel sizes."""
    keys = key(seed, kind.purpose, epoch, np.atleast_1d(indices), view)
    return _draw(keys, _chances((kind,)), np.atleast_1d(heights), np.atleast_1d(widths))


def draw_views(
    kinds: Sequence[ViewKind], *, seed: int, epoch: int, index: int, height: int, width: int
) -> ViewParameters:
    """Draw the parameters of all views of one image: the same as `draw_view` for each view."""
    chances = _chances(tuple(kinds))
    keys = key(seed, chances.purpose, epoch, index, np.arange(len(kinds)))
    return _draw(keys, chances, np.array([height]), np.array([width]))


def _draw(
    keys: NDArray[np.uint64], kind: _Chances, heights: NDArray[np.int64], widths: NDArray[np.int64]
) -> ViewParameters:
    """Draw for all keys; sizes and kinds have one entry per key, or one for all."""
    u = uniforms(keys, 34)
    crop, rest = u[:, :22], u[:, 22:]
    spread = (2 * rest[:, 2:6] - 1) * kind.strength
    return ViewParameters(
        box=_draw_crop(crop, kind.low, kind.high, heights, widths),
        flip=rest[:, 0] < kind.flip,
        jitter=rest[:, 1] < kind.jitter,
        factors=spread + np.array([1.0, 1.0, 1.0, 0.0]),
        order=_ORDERS[(rest[:, 6] * len(_ORDERS)).astype(np.int64)],
        grey=rest[:, 7] < kind.grey,
        blur=rest[:, 8] < kind.blur,
        sigma=_SIGMA[0] + rest[:, 9] * (_SIGMA[1] - _SIGMA[0]),
        solarise=rest[:, 10] < kind.solarise,
    )


def _draw_crop(
    u: FloatArray,
    low: FloatArray,
    high: FloatArray,
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> Boxes:
    """Draw a box of random area and shape; if ten attempts do not fit, use the largest allowed central box."""
    n = _CROP_ATTEMPTS
    area = (heights * widths)[:, None] * (low[:, None] + u[:, :n] * (high - low)[:, None])
    ratio = np.exp((2 * u[:, n : 2 * n] - 1) * _LOG_RATIO)
    width = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    height = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (width > 0) & (width <= widths[:, None]) & (height > 0) & (height <= heights[:, None])

    rows, first = np.arange(len(u)), fits.argmax(axis=1)
    fallback_width, fallback_height = _central_crop(heights, widths)
    any_fits = fits.any(axis=1)
    w = np.where(any_fits, width[rows, first], fallback_width)
    h = np.where(any_fits, height[rows, first], fallback_height)
    top = np.where(any_fits, (u[:, 2 * n] * (heights - h + 1)).astype(np.int64), (heights - h) // 2)
    left = np.where(any_fits, (u[:, 2 * n + 1] * (widths - w + 1)).astype(np.int64), (widths - w) // 2)
    return np.stack([top, left, h, w], axis=1)


def _central_crop(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the whole image, cut to an aspect ratio between 3/4 and 4/3."""
    w = np.minimum(widths, np.rint(heights * (4 / 3)).astype(np.int64))
    h = np.minimum(heights, np.rint(widths * (4 / 3)).astype(np.int64))
    return np.maximum(w, 1), np.maximum(h, 1)
