"""What sources with an index have in common: a copy for another process is the index, and what `_set` makes of it."""

from pathlib import Path
from typing import Any, ClassVar

from carp.images.index import Index
from carp.images.source import Source


class IndexedSource(Source):
    """A source whose knowledge of its images is an `Index`."""

    _FROM_INDEX: ClassVar[frozenset[str]] = frozenset()
    index: Index

    def _set(self, index: Index) -> None:
        """Take an index; subclasses take its arrays too, all of them into attributes named in `_FROM_INDEX`."""
        self.index, self.fingerprint = index, str(index.about["fingerprint"])
        self.classes = tuple(index.about["classes"])

    def keep_index(self, folder: Path) -> None:
        """Store the index, so that the next command finds it and worker processes share it."""
        self._set(self.index.kept(folder))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._FROM_INDEX}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set(self.index)
