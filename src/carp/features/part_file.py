"""Features that are being extracted: appended to a file, beside a note of how far it is whole.

The file has room for the head of an .npy file in front, so that it becomes one without being copied.
"""

import fcntl
import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from carp.data.quarantine import Unreadable
from carp.errors import DataError
from carp.features.extract import FeatureBatch
from carp.files import write_atomic

_SECONDS_BETWEEN_NOTES = 5.0
_HEAD = 128  # bytes that NumPy takes for the head of an array of two dimensions, whatever their size


class PartFile:
    """The features of the images from `start` to `stop`, as far as they are `done`."""

    def __init__(self, path: Path, key: str, start: int, stop: int) -> None:
        self.path, self._note, self._key = path, path.with_suffix(".json"), key
        self.start, self.stop, self.done, self.width = start, stop, start, 0
        self.unreadable: list[Unreadable] = []
        self._file: BinaryIO | None = None
        self._noted = time.monotonic()

    @property
    def rows(self) -> int:
        """Images with features."""
        return self.done - self.start - len(self.unreadable)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open to append; what was written for other features, or after the last note, is thrown away."""
        with self.path.open("ab") as self._file:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataError(f"another process is writing features to {self.path.parent}. Wait for it.") from None
            self.read_note()
            self._file.truncate(_HEAD + self.rows * self.width * 4)  # also makes the room for the head
            self._file.seek(0, os.SEEK_END)
            yield

    def read_note(self) -> None:
        """Take up what the note says, if it is about these features."""
        try:
            note: dict[str, Any] = json.loads(self._note.read_text())
            if (note["key"], note["start"], note["stop"]) == (self._key, self.start, self.stop):
                self.done, self.width = note["done"], note["width"]
                self.unreadable = [Unreadable(*bad) for bad in note["unreadable"]]
        except (OSError, ValueError, TypeError, KeyError):
            pass  # there is none, or it is no note: begin anew

    def append(self, batch: FeatureBatch, offset: int) -> None:
        """Add the features of a batch, whose indices count from `offset`."""
        assert self._file is not None
        self._file.write(np.ascontiguousarray(batch.features).data)
        self.unreadable += [Unreadable(bad.index + offset, bad.place, bad.reason) for bad in batch.unreadable]
        self.done += len(batch.indices) + len(batch.unreadable)
        self.width = batch.features.shape[1] or self.width
        if time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self.note()

    def note(self) -> None:
        """Write down how far the file is whole, after making sure that it is."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        bad = [[bad.index, bad.place, bad.reason] for bad in self.unreadable]
        note = {"key": self._key, "start": self.start, "stop": self.stop, "done": self.done, "width": self.width}
        write_atomic(self._note, json.dumps(note | {"unreadable": bad}))
        self._noted = time.monotonic()

    def remove(self) -> None:
        """Delete what is left of it."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def join_parts(parts: Sequence[PartFile], target: Path) -> None:
    """Make one .npy file of whole parts: the others are appended to the first, which gets its head and its new name."""
    first, *others = parts
    rows, width = sum(part.rows for part in parts), max(part.width for part in parts)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    assert head.tell() == _HEAD
    with first.path.open("r+b") as file:
        file.truncate(_HEAD + first.rows * width * 4)  # an earlier attempt to join may have been interrupted
        file.seek(0, os.SEEK_END)
        for part in others:
            with part.path.open("rb") as more:
                more.seek(_HEAD)
                shutil.copyfileobj(more, file, 2**24)
        file.seek(0)
        file.write(head.getvalue())
        file.flush()
        os.fsync(file.fileno())
    first.path.rename(target)
