"""Random numbers that depend on where they are used, not on earlier draws.

A stream is a hash (SplitMix64's finaliser, applied once per coordinate) of integer coordinates such as
(seed, purpose, epoch, index, view). No random state has to be saved to resume a run, and the number of workers cannot
change a sample.
"""

from enum import IntEnum, unique

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@unique
class Purpose(IntEnum):
    """The purpose of a stream; streams of different purposes are independent. Numbers are never reused."""

    WEIGHTS = 1
    ORDER = 2
    VIEW = 3
    PARTITION = 4
    STEP = 5
    BANK = 6
    SUBSTITUTE = 7
    FEW_SHOT = 8  # which images of a class are drawn
    HELD_OUT = 9  # which images select a classifier of a grid
    GRID_ORDER = 10
    GRID_WEIGHTS = 11
    EXCHANGE = 13  # which prototypes move from one shard to another
    GRID_CROP = 12  # the random crops that linear classifiers train on
    LABEL_FREE_VIEW = 14  # the views of held-out images that a run is judged by without labels
    LABEL_FREE_PART = 15  # which images are held out for that
    ATTACK = 20
    LANDMARK = 21  # which images of a large map are laid out, and which have a thumbnail
    CLUSTERS = 22  # the images that k-means starts from
    TRIAL = 23  # the settings that a random search tries, and the images that judge them
    BOOTSTRAP = 25  # which images a resample counts, for intervals
    DETECTION = 30  # order, scales and flips of images, initial weights of new layers, samples of boxes


def key(*coordinates: ArrayLike) -> NDArray[np.uint64]:
    """Hash integer coordinates (broadcast against each other) to 64 bits."""
    with np.errstate(over="ignore"):
        state: NDArray[np.uint64] = np.zeros((), dtype=np.uint64)
        for coordinate in coordinates:
            state = _mix((state ^ np.asarray(coordinate, dtype=np.uint64)) + _GOLDEN)
    return state


def seed_of(*coordinates: int) -> int:
    """Return a seed for `torch.Generator.manual_seed` from integer coordinates."""
    return int(key(*coordinates)) >> 1


def uniforms(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for every key, with shape keys.shape + (count,)."""
    with np.errstate(over="ignore"):
        counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        bits = _mix(keys[..., None] + counters)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
