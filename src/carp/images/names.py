"""Images by their names."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, nearest
from carp.images.source import Source
from carp.images.subset import Subset

_LOOKED_AT = 2000  # names that a misspelt one is compared with


def names_of(source: Source) -> list[str]:
    """What every image is called: its path below the folder, or where it lies."""
    paths = getattr(source, "paths", None)
    if paths is not None:
        return [str(paths[index]) for index in range(len(source))]
    return [source.place(index) for index in range(len(source))]


class NameIndex:
    """Finds images by name: a path below the folder, or its last part, with or without the suffix."""

    def __init__(self, names: Sequence[str], *, where: str) -> None:
        """`names` of the images, and what a message calls the place where they are."""
        self._where, self._paths = where, {name: place for place, name in enumerate(names)}
        self._short: dict[str, int] = {}
        self._doubtful: set[str] = set()
        for place, name in enumerate(names):
            path = PurePosixPath(name)
            for short in {str(path.with_suffix("")), path.name, path.stem}:
                if self._short.setdefault(short, place) != place:
                    self._doubtful.add(short)

    def find(self, names: Iterable[str], *, named_by: str) -> NDArray[np.int64]:
        """The places of these images; `named_by` says in a message who names them."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self._paths and name not in self._short]
        if missing:
            known = list(self._short)[:_LOOKED_AT]
            raise DataError(
                f"{len(missing):,} of the {len(wanted):,} images that {named_by} names are not in {self._where}, the "
                f"first is '{missing[0]}'.{nearest(missing[0], known)}"
            )
        return np.array([self._place(name, named_by) for name in wanted], dtype=np.int64)

    def _place(self, name: str, named_by: str) -> int:
        if name in self._paths:
            return self._paths[name]
        if name in self._doubtful:
            raise DataError(
                f"'{name}', which {named_by} names, may be one of several images in {self._where}: write its folder "
                "and suffix, too."
            )
        return self._short[name]


def by_name(source: Source, names: Sequence[str], *, named_by: str) -> Subset:
    """The images of these names, in this order, as a source."""
    return Subset(source, NameIndex(names_of(source), where=source.name).find(names, named_by=named_by))
