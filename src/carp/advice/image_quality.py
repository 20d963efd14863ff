"""The quality of single images: blurry, dark, bright, low in information, of an odd size or shape, grey.

The kinds of defects are those of CleanVision, and so are the thresholds of light, shape and information; the measures
are our own. All are taken from a reduced copy, so that the megapixels of a camera do not count as sharpness.

Blur is measured by blurring once more (Crété and others, 2007): a sharp image loses most of the differences between
neighbouring pixels, a blurred one hardly any. The index is the share that remains, in the direction in which it is
larger, so that motion blur counts as well. In ordinary photographs it is below 0.5; a Gaussian blur of 2% of the longer
side raises it above 0.6 (docs/tasks/advise.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from carp.images.decoding.decode import Pixels

_SIDE = 128  # of the reduced copy, its longer side
_WINDOW = 9  # pixels that the second blur averages
_SMALLEST, _FLATTEST = 16, 0.02  # side and contrast below which sharpness means nothing
BLURRY, DARK, BRIGHT, FEW_BITS, ODD_FACTOR, ODD_RATIO, GREY = 0.55, 0.32, 0.95, 1.5, 10.0, 0.35, 0.02

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Quality:
    """Measures of one image; lightness and colour from 0 to 1."""

    width: int
    height: int
    highlights: float
    """The lightness that 1% of the pixels exceed."""
    shadows: float
    """The lightness that 5% of the pixels do not reach."""
    bits: float
    """Entropy of the lightness, in bits per pixel: 8 at most."""
    blur: float
    """The index above; 0 where it means nothing."""
    colour: float
    """The difference between the strongest and the weakest channel that 1% of the pixels exceed."""


@dataclass(frozen=True)
class Defect:
    """A kind of defect. An image has it if its severity is above 0; the larger, the worse."""

    name: str
    rule: str
    severity: Callable[[Sequence[Quality]], Numbers]
    harmless: bool = False
    """Whether it is only worth knowing."""


def measure(pixels: Pixels) -> Quality:
    """Measure an image of RGB bytes [H, W, 3]."""
    height, width, _ = pixels.shape
    small = _reduced(pixels)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
    shadows, highlights = np.percentile(grey, [5, 99]) / 255
    counts = np.bincount(grey.ravel(), minlength=256)
    shares = counts[counts > 0] / grey.size
    colour = np.percentile(small.max(axis=2).astype(np.int16) - small.min(axis=2), 99) / 255
    return Quality(
        width=width,
        height=height,
        highlights=float(highlights),
        shadows=float(shadows),
        bits=float(-(shares * np.log2(shares)).sum()),
        blur=_blur(np.asarray(grey / 255, dtype=np.float32)),
        colour=float(colour),
    )


def _reduced(pixels: Pixels) -> Pixels:
    height, width, _ = pixels.shape
    scale = _SIDE / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _blur(grey: NDArray[np.float32]) -> float:
    """The share of the differences between neighbours that a second blur leaves."""
    if min(grey.shape) < _SMALLEST or grey.std() < _FLATTEST:
        return 0.0
    left = []
    for axis, window in ((0, (1, _WINDOW)), (1, (_WINDOW, 1))):
        again = cv2.blur(grey, window, borderType=cv2.BORDER_REFLECT)
        before, after = np.abs(np.diff(grey, axis=axis)), np.abs(np.diff(again, axis=axis))
        lost, total = np.maximum(before - after, 0).sum(), before.sum()
        left.append(float(1 - lost / total) if total > 0 else 0.0)
    return max(left)


def _column(images: Sequence[Quality], name: str) -> Numbers:
    return np.array([getattr(image, name) for image in images], dtype=np.float64)


def _odd_size(images: Sequence[Quality]) -> Numbers:
    areas = np.log(_column(images, "width") * _column(images, "height"))
    return np.asarray(np.abs(areas - np.median(areas)) - np.log(ODD_FACTOR))


def _odd_shape(images: Sequence[Quality]) -> Numbers:
    sides = np.stack([_column(images, "width"), _column(images, "height")])
    return np.asarray(ODD_RATIO - sides.min(axis=0) / sides.max(axis=0))


DEFECTS = (
    Defect("blurry", f"blur index above {BLURRY:g}", lambda images: _column(images, "blur") - BLURRY),
    Defect(
        "dark",
        f"99% of the pixels darker than {DARK:.0%} of white",
        lambda images: DARK - _column(images, "highlights"),
    ),
    Defect(
        "bright",
        f"95% of the pixels brighter than {BRIGHT:.0%} of white",
        lambda images: _column(images, "shadows") - BRIGHT,
    ),
    Defect(
        "low information",
        f"entropy of the lightness below {FEW_BITS:g} bits",
        lambda images: FEW_BITS - _column(images, "bits"),
    ),
    Defect("odd size", f"{ODD_FACTOR:g} times more or fewer pixels than the median image", _odd_size),
    Defect("odd shape", f"shorter side below {ODD_RATIO:g} of the longer", _odd_shape),
    Defect(
        "grey",
        f"channels differ by less than {GREY:.0%}",
        lambda images: GREY - _column(images, "colour"),
        harmless=True,
    ),
)
