"""Two encoders on the same images: how many of the nearest neighbours of an image are the same.

Shapes: M images, S images of the sample, F features.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.evaluation.nearest_neighbours import nearest
from carp.exploration.layout import spread_rows
from carp.features.extract import Features, Progress

NEIGHBOURS = 10


@dataclass(frozen=True)
class KeptNeighbours:
    """Which neighbours two encoders agree on."""

    rows: NDArray[np.int64]
    """The images that were compared, [S]; neighbours are found among these."""
    kept: Features
    """The share of the nearest neighbours of every one that both encoders find, [S]."""
    neighbours: int
    """How many neighbours."""

    @property
    def mean(self) -> float:
        """Over all images."""
        return float(self.kept.mean())

    def least(self, count: int) -> list[int]:
        """The images whose neighbours changed most."""
        return list(map(int, self.rows[np.argsort(self.kept, kind="stable")[:count]]))

    def most(self, count: int) -> list[int]:
        """The images whose neighbours changed least."""
        return list(map(int, self.rows[np.argsort(-self.kept, kind="stable")[:count]]))


def kept_neighbours(
    one: Features, other: Features, *, most: int, seed: int = 0, progress: Progress = lambda _done, _all: None
) -> KeptNeighbours:
    """Compare the neighbours by the features [M, F] of two encoders, on at most so many images at random."""
    rows = spread_rows(len(one), most, seed)
    count = max(1, min(NEIGHBOURS, len(rows) - 1))
    found = []
    for done, features in enumerate((one, other)):
        some = np.ascontiguousarray(features[rows])
        found.append(nearest(some, some, count, leave_one_out=True)[1])
        progress(done + 1, 2)
    kept = (found[0][:, :, None] == found[1][:, None, :]).any(axis=2).mean(axis=1, dtype=np.float32)
    return KeptNeighbours(rows, kept, count)
