"""A small image set that is drawn, not downloaded: each image is covered with one repeated motif.

The class of an image is its motif. Everything that is easy to measure is drawn independently of the class: colours,
whether the motif or the ground is brighter, the light over both, and the place, size, tilt and wobble of the motif. Raw
pixels therefore say little about the class, while every crop still shows it.

The bytes are the same on every machine: besides uniform random numbers, only operations that IEEE 754 rounds exactly
are used (+ - * / sqrt, comparisons), never sin, exp or a reduction whose order may depend on the processor.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, nearest
from carp.images.source import Opening
from carp.images.sources.array import ArraySource

Floats = NDArray[np.float64]
Motif = Callable[[Floats, Floats], Floats]

SIDE = 32
_SAMPLES = 2  # per pixel and axis: enough for smooth edges together with the soft step
_SPLITS = {"shapes": "train", "shapes-test": "test"}
_PER_CLASS = {"train": 480, "test": 110}
_SEEDS = {"train": 20_240_001, "test": 20_240_002}

# The balance of these numbers makes the set. Where the light varies more than the motif, raw pixels compare the light;
# where it varies much more, or in small spots that overlapping crops share, a model too distinguishes images by their
# light and never learns the motif.
_PERIOD = (4.5, 7.0)  # pixels, of a motif of size 1
_STEP = (0.2, 0.3)  # difference in brightness between motif and ground, in a range of 1
_FLAT = 0.2  # largest change of each colour over the whole image
_SLOPE = 0.15  # largest change of each colour for each slope or bend of the light
_WOBBLE = 0.25  # largest displacement of the motif, in periods
_KNOTS = 5  # along a side, between which the displacement is interpolated


class EmbeddedSource(ArraySource):
    """`embedded:shapes` for training, `embedded:shapes-test` for testing; 32 × 32 pixels, read-only."""

    kind = "embedded"
    example = "embedded:shapes"
    claim_order = 50
    labels: NDArray[np.int64]  # every image has one

    @classmethod
    def claims(cls, data: object) -> bool:  # noqa: ARG003
        """Claim nothing: the prefix is needed."""
        return False

    @classmethod
    def open(cls, data: str, how: Opening) -> "EmbeddedSource":  # noqa: ARG003 - it is drawn, so no option applies
        """Draw the set of this name, once in a process."""
        if data not in _SPLITS:
            raise DataError(
                f"there is no embedded set '{data}'.{nearest(data, _SPLITS)} Embedded sets: {', '.join(_SPLITS)}."
            )
        return shapes(_SPLITS[data])


# A motif is a function of the place in units of its period. It is negative on the motif, zero on
# its outline, and grows about as fast as the distance to it.


def _fold(t: Floats) -> Floats:
    """Return the distance to the middle of the period that t lies in: 0 to 1/2."""
    return np.abs(t - np.floor(t) - 0.5)


def _stripes(x: Floats, y: Floats) -> Floats:  # noqa: ARG001 - a motif takes both
    return _fold(y) - 0.25


def _columns(x: Floats, y: Floats) -> Floats:
    return _stripes(y, x)


def _zigzag(x: Floats, y: Floats) -> Floats:
    return 0.7 * _stripes(x, y + 2 * _fold(x / 2))


def _checks(x: Floats, y: Floats) -> Floats:
    a, b = _columns(x, y), _stripes(x, y)
    return np.maximum(np.minimum(a, b), -np.maximum(a, b))


def _grid(x: Floats, y: Floats) -> Floats:
    return np.minimum(_fold(x), _fold(y)) - 0.12


def _lattice(x: Floats, y: Floats) -> Floats:
    return _grid(0.7071 * (x - y), 0.7071 * (x + y))


def _dots(x: Floats, y: Floats) -> Floats:
    a, b = _fold(x), _fold(y)
    return np.sqrt(a * a + b * b) - 0.33


def _rings(x: Floats, y: Floats) -> Floats:
    return np.abs(_dots(x, y) + 0.01) - 0.11


def _triangles(x: Floats, y: Floats) -> Floats:
    return np.maximum(0.9 * _fold(x) - 0.45 * (y - np.floor(y)) + 0.02, _fold(y) - 0.45)


def _bricks(x: Floats, y: Floats) -> Floats:
    shifted = x / 2 + np.floor(y) / 2
    return np.maximum(2 * _fold(shifted) - 0.85, _fold(y) - 0.35)


# Each with its size, the period relative to that of the stripes: a motif with more detail needs
# more room, and motifs that look alike from afar (dots and grid, checks and lattice) differ in it.
_MOTIFS: dict[str, tuple[Motif, float]] = {
    "stripes": (_stripes, 1.0),
    "columns": (_columns, 1.0),
    "zigzag": (_zigzag, 1.2),
    "checks": (_checks, 1.1),
    "grid": (_grid, 1.4),
    "lattice": (_lattice, 1.7),
    "dots": (_dots, 0.9),
    "rings": (_rings, 1.7),
    "triangles": (_triangles, 2.0),
    "bricks": (_bricks, 1.3),
}


@lru_cache(maxsize=2)
def shapes(split: str) -> EmbeddedSource:
    """Draw the images of "train" or "test", which share no image; the same bytes in every process.

    There are as many images of each class, in an order that mixes the classes.
    """
    count = _PER_CLASS[split]
    rng = np.random.Generator(np.random.Philox(key=_SEEDS[split]))
    images = np.concatenate([_draw(rng, *motif, count) for motif in _MOTIFS.values()])
    labels = np.repeat(np.arange(len(_MOTIFS), dtype=np.int64), count)
    order = np.argsort(rng.random(len(labels)), kind="stable")
    images, labels = images[order], labels[order]
    images.flags.writeable = labels.flags.writeable = False
    name = next(name for name, own in _SPLITS.items() if own == split)
    return EmbeddedSource(images, labels, tuple(_MOTIFS), name=f"{EmbeddedSource.kind}:{name}")


def _draw(rng: np.random.Generator, motif: Motif, size: float, count: int) -> NDArray[np.uint8]:
    """Draw images of one motif: [count, 32, 32, 3]."""
    cover = _cover(rng, motif, size, count)
    # Motif and ground differ in brightness by a visible step of either sign, and freely in hue.
    sign = np.where(_uniform(rng, -1, 1, count, 1, 1, 1) < 0, -1, 1)
    step = sign * _uniform(rng, *_STEP, count, 1, 1, 1)
    step = step + _uniform(rng, -0.12, 0.12, count, 1, 1, 3)
    canvas = _light(rng, count) + (cover[..., None] - 0.5) * step
    canvas = canvas + _uniform(rng, -0.04, 0.04, count, SIDE, SIDE, 3)
    return (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)


def _cover(rng: np.random.Generator, motif: Motif, size: float, count: int) -> Floats:
    """Return how much of each pixel the motif covers, 0 to 1: [count, 32, 32]."""
    side = SIDE * _SAMPLES
    line = (np.arange(side) + 0.5) / _SAMPLES
    x, y = _turn(line[None, None, :], line[None, :, None], _uniform(rng, -0.1, 0.1, count, 1, 1))
    period = _uniform(rng, *_PERIOD, count, 1, 1) * size
    x = x / period + _uniform(rng, 0, 2, count, 1, 1) + _wobble(rng, line, count)
    y = y / period + _uniform(rng, 0, 2, count, 1, 1) + _wobble(rng, line, count)
    # A soft step one sample wide: distances are turned from periods into samples.
    return _shrink(np.clip(0.5 - motif(x, y) * period * _SAMPLES, 0, 1))


def _wobble(rng: np.random.Generator, line: Floats, count: int) -> Floats:
    """Return a smooth random displacement in periods, so that no two images align: [count, side, side]."""
    knots = _uniform(rng, -_WOBBLE, _WOBBLE, count, _KNOTS, _KNOTS)
    place = line * ((_KNOTS - 1) / SIDE)
    weights = [np.maximum(1 - np.abs(place - knot), 0) for knot in range(_KNOTS)]
    rows: Floats = np.zeros((count, _KNOTS, len(line)))
    for knot, weight in enumerate(weights):
        rows = rows + knots[:, :, knot, None] * weight
    plane: Floats = np.zeros((count, len(line), len(line)))
    for knot, weight in enumerate(weights):
        plane = plane + rows[:, knot, None, :] * weight[:, None]
    return plane


def _light(rng: np.random.Generator, count: int) -> Floats:
    """Return the mean colour of motif and ground, with slopes and bends: [count, 32, 32, 3]."""
    line = (np.arange(SIDE) + 0.5) / (SIDE / 2) - 1
    x, y = line[None, None, :, None], line[None, :, None, None]
    light = 0.5 + _uniform(rng, -_FLAT, _FLAT, count, 1, 1, 3)
    # Less 0.4, a bend changes the mean of the image little.
    for term in (x, y, x * y, x * x - 0.4, y * y - 0.4):
        light = light + term * _uniform(rng, -_SLOPE, _SLOPE, count, 1, 1, 3)
    return light


def _turn(x: Floats, y: Floats, half_tangent: Floats) -> tuple[Floats, Floats]:
    """Rotate by the angle whose half has this tangent, without the sine and cosine of a library."""
    square = half_tangent * half_tangent
    cosine, sine = (1 - square) / (1 + square), 2 * half_tangent / (1 + square)
    return cosine * x - sine * y, sine * x + cosine * y


def _shrink(samples: Floats) -> Floats:
    """Average the 2 x 2 samples of each pixel, in a fixed order."""
    rows = samples[:, 0::2] + samples[:, 1::2]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]) / 4


def _uniform(rng: np.random.Generator, low: float, high: float, *shape: int) -> Floats:
    return low + (high - low) * rng.random(shape)
