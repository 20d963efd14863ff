"""The places of a store's images by row. They stay in their file, so a million of them take 8 MB."""

import json
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from carp.features.store import PLACES, Store

_BYTES_AT_A_TIME = 2**24
_NEWLINE = 10


class StoredPlaces:
    """Reads single lines of `places.jsonl`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        start = int(self._ends[row - 1]) + 1 if row else 0
        try:
            return str(json.loads(self._text[start : int(self._ends[row])].tobytes()))
        except ValueError:
            raise self._store.damaged(PLACES, "it is not one JSON string per line") from None

    @cached_property
    def _text(self) -> NDArray[np.uint8]:
        try:
            return np.memmap(self._store.folder / PLACES, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise self._store.damaged(PLACES, str(error)) from None

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where every line ends."""
        text = self._text
        starts = range(0, len(text), _BYTES_AT_A_TIME)
        found = [np.flatnonzero(text[start : start + _BYTES_AT_A_TIME] == _NEWLINE) + start for start in starts]
        ends = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        if len(ends) != len(self._store):
            raise self._store.damaged(PLACES, f"it names {len(ends):,} images, expected {len(self._store):,}")
        return ends
