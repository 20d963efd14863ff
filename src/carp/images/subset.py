"""Some images of a source, as a source."""

import numpy as np
from numpy.typing import NDArray

from carp.images.decoding.decode import Stored
from carp.images.source import Source
from carp.random import Purpose, key


class Subset:
    """The images `indices` of a source, in that order."""

    def __init__(self, source: Source, indices: NDArray[np.int64]) -> None:
        self._source, self.indices = source, indices
        self.labels = None if source.labels is None else source.labels[indices]
        self.classes, self.name, self.fingerprint = source.classes, source.name, source.fingerprint

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, index: int) -> Stored:
        """One image as it is stored."""
        return self._source.fetch(int(self.indices[index]))

    def place(self, index: int) -> str:
        """Where one image lies."""
        return self._source.place(int(self.indices[index]))


def at_random(source: Source, size: int, *, seed: int) -> Subset:
    """At most `size` images, chosen by the seed and in their old order."""
    order = np.argsort(key(seed, Purpose.BANK, np.arange(len(source))), kind="stable")
    return Subset(source, np.sort(order[:size]))
