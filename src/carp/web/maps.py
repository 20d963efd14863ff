"""The maps of all spaces: principal components at once, t-SNE when it is ready, and the map that was kept last time."""

import threading
from collections.abc import Sequence

import numpy as np

from carp.exploration.layout import Layout, aligned, lay_out, lay_out_quickly
from carp.exploration.stored_layout import read_layout, write_layout
from carp.features.extract import Progress
from carp.web.background import SLOW, Background
from carp.web.space import Space

_LIMIT = 32767
QUICK, FINAL = 0, 1  # versions of a map


class Maps:
    """Lays spaces out, one after the other."""

    def __init__(self, spaces: Sequence[Space], background: Background) -> None:
        self._spaces, self._background = spaces, background
        self._found: dict[tuple[int, int], Layout] = {}
        self._lock = threading.Lock()

    def state(self, number: int) -> dict[str, object]:
        """Which version of a map there is, how it was made, and how far the next one is."""
        version = FINAL if self._kept(number) is not None else QUICK
        working = None
        if version == QUICK:
            task = self._background.ask(("map", number), lambda progress: self._lay_out(number, progress), SLOW)
            version = FINAL if task.done and task.error is None else QUICK
            working = None if task.done else task.progress
        return {"version": version, "method": self._layout(number, version).method, "working": working}

    def points(self, number: int, version: int) -> bytes:
        """All x, then all y, as int16."""
        layout = self._layout(number, version)
        points = layout.points if number == 0 else aligned(layout.points, self._layout(0, self._newest(0)).points)
        return np.ascontiguousarray(np.round(points.T * _LIMIT), dtype="<i2").tobytes()

    def _newest(self, number: int) -> int:
        return FINAL if (number, FINAL) in self._found else QUICK

    def _layout(self, number: int, version: int) -> Layout:
        with self._lock:
            if (found := self._found.get((number, version))) is not None:
                return found
            quick = self._found[number, QUICK] = lay_out_quickly(self._spaces[number].features)
            return quick

    def _kept(self, number: int) -> Layout | None:
        """The final map: laid out by now, or kept beside the features."""
        if (found := self._found.get((number, FINAL))) is not None:
            return found
        space = self._spaces[number]
        found = None if space.folder is None else read_layout(space.folder, space.key, len(space.features))
        if found is not None:
            self._found[number, FINAL] = found
        return found

    def _lay_out(self, number: int, progress: Progress) -> None:
        space = self._spaces[number]
        layout = lay_out(space.features, progress=progress)
        self._found[number, FINAL] = layout
        if space.folder is not None and layout.method.startswith("t-SNE"):
            write_layout(space.folder, space.key, layout)
