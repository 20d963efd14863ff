"""How much the pixels of near-duplicates agree, and how large an image is without its border.

Features show that two images have the same content; pixels show whether they are the same picture. The agreement of two
images is the correlation of their grey values at 24 × 24, as they are or mirrored: 1 for a copy that was compressed,
scaled, brightened or mirrored, about 0.9 for two frames of one scene, less after a crop.

Shapes: N images, P pixels of a small picture.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carp.features.extract import Features
from carp.images.decoding.decode import Pixels

SIDE = 24
_FLAT = 6.0  # a row or column of a border differs by no more than this from its median, of 255
_LEAST = 1e-6


@dataclass(frozen=True)
class Look:
    """The properties of an image that are compared."""

    grey: Features  # [24 · 24], of mean 0 and unit length
    inner: tuple[int, int]  # width and height without a border of one colour


def look_at(pixels: Pixels) -> Look:
    """Return the properties of an image of RGB bytes [H, W, 3]."""
    inner = without_border(pixels)
    small = Image.fromarray(inner).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, dtype=np.float32).ravel()
    grey = grey - grey.mean()
    return Look(grey / max(float(np.linalg.norm(grey)), _LEAST), (inner.shape[1], inner.shape[0]))


def without_border(pixels: Pixels) -> Pixels:
    """Return the part inside a border of one colour; an image of one colour has no border."""
    grey = pixels.astype(np.float32).mean(axis=2)
    top, bottom = _inside(grey)
    left, right = _inside(grey[top:bottom].T)
    return pixels[top:bottom, left:right]


def _inside(grey: Features) -> tuple[int, int]:
    """First row, and last row + 1, inside the border: a border is rows of one and the same colour, from the edge."""
    middle = np.median(grey, axis=1)
    flat = np.abs(grey - middle[:, None]).max(axis=1) <= _FLAT
    first = _leading(flat & (np.abs(middle - middle[0]) <= _FLAT))
    last = _leading((flat & (np.abs(middle - middle[-1]) <= _FLAT))[::-1])
    return (0, len(grey)) if first + last >= len(grey) else (first, len(grey) - last)


def _leading(flags: NDArray[np.bool_]) -> int:
    return int(np.argmin(flags)) if not flags.all() else len(flags)


def agreement(looks: list[Look]) -> float:
    """Return the weakest link of a group: pairs that agree at least this much connect all of its images.

    It is found by growing a spanning tree along the strongest links, so no N × N matrix is held in memory.
    """
    grey_NP = np.stack([look.grey for look in looks])
    mirrored_NP = grey_NP.reshape(-1, SIDE, SIDE)[:, :, ::-1].reshape(len(looks), -1)
    best_N, outside_N = np.full(len(looks), -1.0), np.ones(len(looks), dtype=np.bool_)
    weakest, newest = 1.0, 0
    for _ in range(len(looks) - 1):
        outside_N[newest] = False
        link_N = np.maximum(grey_NP @ grey_NP[newest], mirrored_NP @ grey_NP[newest])
        best_N = np.maximum(best_N, link_N)
        newest = int(np.argmax(np.where(outside_N, best_N, -np.inf)))
        weakest = min(weakest, float(best_N[newest]))
    return weakest
