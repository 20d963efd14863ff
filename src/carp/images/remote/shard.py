"""A file of a source, on this machine or on a server, read by position.

`reading` is the one way to the bytes of a shard. Those of a remote shard come from the cache, or by range requests; the
source cannot tell which.
"""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from carp.files.regular import check_regular, open_descriptor
from carp.images.decoding.transient import retrying
from carp.images.remote.remote_file import RemoteFile, read_ranges
from carp.images.remote.shard_cache import ShardCache


@dataclass(frozen=True)
class RemoteShard:
    """A remote file, and the cache that holds it."""

    file: RemoteFile
    cache: ShardCache

    def __str__(self) -> str:
        return str(self.file)


Shard = Path | RemoteShard


class Reader(ABC):
    """An open file."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of bytes."""

    @abstractmethod
    def read_at(self, start: int, size: int) -> bytes:
        """Return `size` bytes from byte `start`, or fewer at the end of the file."""


class DescriptorReader(Reader):
    """A file that is open as a descriptor, which the caller closes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """The number of bytes."""
        return os.fstat(self._descriptor).st_size

    def read_at(self, start: int, size: int) -> bytes:
        """Return `size` bytes from byte `start`, or fewer at the end of the file."""
        return os.pread(self._descriptor, size, start)


class _RangeReader(Reader):
    """A file on a server; `ahead` bytes are requested at once, for callers that read a little at a time."""

    def __init__(self, file: RemoteFile, ahead: int) -> None:
        self._file, self._ahead = file, ahead
        self._first, self._block = 0, b""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._file.size

    def read_at(self, start: int, size: int) -> bytes:
        """Return `size` bytes from byte `start`, or fewer at the end of the file."""
        size = max(0, min(size, self.size - start))
        inside = start - self._first
        if size and not 0 <= inside <= len(self._block) - size:
            wanted = min(max(size, self._ahead), self.size - start)
            self._first, self._block, inside = start, read_ranges(self._file, [start], [wanted])[0], 0
        return self._block[inside : inside + size]


class ReaderFile(io.RawIOBase):
    """A `Reader` as a file object."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader, self._place = reader, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position."""
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._reader.size}[whence]
        return self._place

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer."""
        found = self._reader.read_at(self._place, len(buffer))
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)


@contextmanager
def reading(shard: Shard, *, whole: bool = True, ahead: int = 0) -> Iterator[Reader]:
    """Open a shard.

    Args:
        shard: The shard.
        whole: Whether to download a remote shard that is not in the cache. Otherwise ranges of it are requested, as
            they are where the cache has no room.
        ahead: How many bytes to request at once in this case.
    """
    if isinstance(shard, Path):
        descriptor: int | None = open_descriptor(shard)
    else:
        descriptor = shard.cache.open(shard.file) if whole else shard.cache.peek(shard.file)
        if descriptor is None:
            yield _RangeReader(shard.file, ahead)
            return
    assert descriptor is not None
    try:
        yield DescriptorReader(descriptor)
    finally:
        os.close(descriptor)


def stamp_of(shard: Shard) -> list[int | str]:
    """Return what changes when a shard changes; raise an OSError if a local one cannot be read."""
    if not isinstance(shard, Path):
        return [shard.file.size, shard.file.version]
    retrying(partial(check_regular, shard), shard)
    state = retrying(shard.stat, shard)
    return [state.st_size, state.st_mtime_ns]


def identity_of(shard: Shard) -> str:
    """Return the absolute path or the address of a shard, under which its index is stored."""
    return os.path.abspath(shard) if isinstance(shard, Path) else str(shard)  # noqa: PTH100 - links stay as they are
