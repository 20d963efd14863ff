"""Features that are being extracted: appended to a file, next to a note that records how much of it is complete.

The note is written after the bytes have reached the disk, and holds their checksum. If the file is shorter than
recorded, or its checksum differs, extraction starts again.

The file leaves room for the header of an .npy file at its start, so that it becomes one without being copied.
"""

import fcntl
import io
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from carp.errors import DataError
from carp.features.extract import FeatureBatch
from carp.files.atomic import is_unfinished, write_atomic
from carp.images.loading.quarantine import Unreadable

_SECONDS_BETWEEN_NOTES = 5.0
_HEAD = 128  # bytes of NumPy's header of any array of two dimensions
_BLOCK = 2**24
_NAME = re.compile(r"part-\d+-of-\d+\.(bin|json)")


class PartFile:
    """The features of the images from `start` to `stop`, as far as they are `done`."""

    def __init__(self, path: Path, key: str, start: int, stop: int, *, becomes: Path | None = None) -> None:
        self.path, self._note, self._key = path, path.with_suffix(".json"), key
        self.start, self.stop, self._becomes = start, stop, becomes
        self.file: BinaryIO | None = None
        self._noted = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self.done, self.width, self._checksum = self.start, 0, 0
        self.unreadable: list[Unreadable] = []

    @property
    def rows(self) -> int:
        """The number of images with features."""
        return self.done - self.start - len(self.unreadable)

    @property
    def end(self) -> int:
        """The number of bytes that the note covers."""
        return _HEAD + self.rows * self.width * 4

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the file and resume at its end; bytes of other features or after the last note are discarded.

        The lock follows the file when it is renamed, and opening the file again does not release it.
        """
        target, renamed = self._becomes, False
        if target is not None and not self.path.exists() and target.exists():
            descriptor, renamed = os.open(target, os.O_RDWR), True  # a process was killed after it had renamed the file
        else:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "r+b") as self.file:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataError(
                    f"another process is writing features to {self.path.parent}. Wait for it, or give another folder."
                ) from None
            if renamed and target is not None:
                target.rename(self.path)
            self.read_note()
            self.file.truncate(self.end)  # also makes the room for the header
            self.file.seek(0, os.SEEK_END)
            yield

    def read_note(self) -> None:
        """Resume from the note if it belongs to these features and the bytes match its checksum."""
        try:
            note: dict[str, Any] = json.loads(self._note.read_text())
            if (note["key"], note["start"], note["stop"]) != (self._key, self.start, self.stop):
                return
            self.done, self.width, self._checksum = int(note["done"]), int(note["width"]), int(note["crc32"])
            self.unreadable = [Unreadable(*bad) for bad in note["unreadable"]]
            if not (self.start <= self.done <= self.stop and self.rows >= 0 and self._bytes_match()):
                self._begin()
        except (OSError, ValueError, TypeError, KeyError):
            self._begin()  # there is no note, or it is damaged

    def _bytes_match(self) -> bool:
        if self.path.stat().st_size < self.end:
            return False
        checksum, left = 0, self.end - _HEAD
        with self.path.open("rb") as file:
            file.seek(_HEAD)
            while left and (block := file.read(min(left, _BLOCK))):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
        return left == 0 and checksum == self._checksum

    def append(self, batch: FeatureBatch, offset: int) -> None:
        """Add the features of a batch, whose indices count from `offset`."""
        assert self.file is not None
        width = batch.features.shape[1]
        if width and self.width and width != self.width:
            raise DataError(
                f"the encoder returned features of length {self.width}, then of length {width}. Use another encoder."
            )
        content = np.ascontiguousarray(batch.features, dtype="<f4").data
        self.file.write(content)
        self._checksum = zlib.crc32(content, self._checksum)
        self.unreadable += [Unreadable(bad.index + offset, bad.place, bad.reason) for bad in batch.unreadable]
        self.done += len(batch.indices) + len(batch.unreadable)
        self.width = width or self.width
        if time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self.note()

    def note(self) -> None:
        """Note how far the file is complete, after its bytes have reached the disk."""
        assert self.file is not None
        self.file.flush()
        os.fsync(self.file.fileno())
        note = {
            "key": self._key,
            "start": self.start,
            "stop": self.stop,
            "done": self.done,
            "width": self.width,
            "crc32": self._checksum,
            "unreadable": [[bad.index, bad.place, bad.reason] for bad in self.unreadable],
        }
        write_atomic(self._note, json.dumps(note))
        self._noted = time.monotonic()


def is_part(path: Path) -> bool:
    """Return whether a path is a part file, its note, or an unfinished one of these."""
    return _NAME.fullmatch(path.name) is not None or is_unfinished(path)


def join_parts(parts: Sequence[PartFile], target: Path) -> None:
    """Join complete parts into one .npy file.

    The other parts are appended to the first, which is open and then gets its header and its new name.
    """
    for part in parts:
        if part.done != part.stop:
            done = f"{part.done - part.start:,} of {part.stop - part.start:,} images"
            raise DataError(f"{part.path} contains the features of {done}. Run the same command again.")
    first, *others = parts
    file = first.file
    assert file is not None
    rows, width = sum(part.rows for part in parts), max(part.width for part in parts)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    assert head.tell() == _HEAD
    file.seek(_HEAD + first.rows * width * 4)
    for part in others:
        with part.path.open("rb") as more:
            more.seek(_HEAD)
            shutil.copyfileobj(more, file, _BLOCK)
    file.seek(0)
    file.write(head.getvalue())
    file.flush()
    os.fsync(file.fileno())
    first.path.rename(target)
