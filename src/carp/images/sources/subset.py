"""A subset of a source, as a source: chosen by index, at random, or by name."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, nearest
from carp.images.decoding.decode import Stored
from carp.images.source import Source
from carp.random import Purpose, key

_COMPARED = 2000  # names that a misspelt one is compared with


class Subset(Source):
    """The images `indices` of a source, in that order."""

    def __init__(self, source: Source, indices: NDArray[np.int64]) -> None:
        self._source, self.indices = source, indices
        self.labels = None if source.labels is None else source.labels[indices]
        self.classes, self.name, self.fingerprint = source.classes, source.name, source.fingerprint
        self.label_remedy = source.label_remedy

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, index: int) -> Stored:
        """Fetch the image from the source."""
        return self._source.fetch(int(self.indices[index]))

    def place(self, index: int) -> str:
        """Return its place in the source."""
        return self._source.place(int(self.indices[index]))


def at_random(source: Source, size: int, *, seed: int) -> Subset:
    """At most `size` images, chosen by the seed and in their original order."""
    order = np.argsort(key(seed, Purpose.BANK, np.arange(len(source))), kind="stable")
    return Subset(source, np.sort(order[:size]))


def held_out(source: Source, size: int, *, seed: int) -> tuple[Source, Subset]:
    """Divide a source at random into the images to train on and `size` others; the former keep their shards."""
    order = np.argsort(key(seed, Purpose.LABEL_FREE_PART, np.arange(len(source))), kind="stable")
    others, rest = np.sort(order[:size]), np.sort(order[size:])
    train = Subset(source, rest) if size else source
    if size and source.groups is not None:
        shard_of = np.repeat(np.arange(len(source.groups)), source.groups)
        train.groups = np.bincount(shard_of[rest], minlength=len(source.groups))
        train.groups, train.window = train.groups[train.groups > 0], source.window
    return train, Subset(source, others)


def by_name(source: Source, names: Sequence[str], *, named_by: str) -> Subset:
    """Select the images with these names, in this order; error messages name `named_by` as their origin."""
    return Subset(source, NameIndex(names_of(source), where=source.name).find(names, named_by=named_by))


def names_of(source: Source) -> list[str]:
    """Return the short names of all images."""
    return [source.short_name(index) for index in range(len(source))]


class NameIndex:
    """Finds images by name: by their path, or by its last part, with or without the suffix."""

    def __init__(self, names: Sequence[str], *, where: str) -> None:
        """Index `names`; `where` is the place of these images in error messages."""
        self._where, self._paths = where, {name: place for place, name in enumerate(names)}
        self._short: dict[str, int] = {}
        self._ambiguous: set[str] = set()
        for place, name in enumerate(names):
            path = PurePosixPath(name)
            for short in {str(path.with_suffix("")), path.name, path.stem}:
                if self._short.setdefault(short, place) != place:
                    self._ambiguous.add(short)

    def find(self, names: Iterable[str], *, named_by: str) -> NDArray[np.int64]:
        """Return the indices of these images; error messages name `named_by` as their origin."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self._paths and name not in self._short]
        if missing:
            known = list(self._short)[:_COMPARED]
            raise DataError(
                f"{len(missing):,} of the {len(wanted):,} images that {named_by} names are not in {self._where}; the "
                f"first is '{missing[0]}'.{nearest(missing[0], known)} Correct the names, or give the other images."
            )
        return np.array([self._place(name, named_by) for name in wanted], dtype=np.int64)

    def _place(self, name: str, named_by: str) -> int:
        if name in self._paths:
            return self._paths[name]
        if name in self._ambiguous:
            raise DataError(
                f"'{name}', which {named_by} names, matches more than one image in {self._where}: give its folder "
                "and suffix as well."
            )
        return self._short[name]
