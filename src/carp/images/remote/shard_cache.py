"""Whole shards on the local disk: at most `cache_gb` in total, shared by all processes on the machine.

A shard is downloaded once, under a temporary name, and then never changes: its name is a hash of its address, size and
version. The time of the last use is the modification time of the file. If there is no room, the least recently used
shards are removed, but none that was used within the last minute; if that does not help, the caller reads ranges of the
shard instead. So a cache that is too small makes a run slower, but never downloads a shard per image.

An open shard can be removed: a process that has it open reads on.
"""

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from carp.errors import DataError
from carp.files.atomic import is_unfinished, remove_unfinished, replacing
from carp.files.lock import LockHeldError, held
from carp.images.remote.remote_file import RemoteFile, describe, has_ranges, read_ranges, stream, surely

DEFAULT_GB = 50.0
IN_USE_SECONDS = 60.0
_TOUCH_SECONDS = 10.0  # between two updates of the time of the last use
_FULL_SECONDS = 10.0  # before a full cache is tried again
_PIECE, _PIECES = 8 << 20, 4  # bytes of a range request, and requests at the same time
_SLOTS = 64  # lock files; shards that share one wait for each other
_SUFFIX = ".shard"


class _NoRoomError(Exception):
    """The cache is full of shards that are in use."""


class _Process:
    """What this process knows; a forked one starts afresh, because another thread may have held a lock."""

    def __init__(self) -> None:
        self.locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self.full_until: dict[str, float] = {}
        self.warned = False


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.__init__)  # type: ignore[misc]


@dataclass(frozen=True)
class ShardCache:
    """A folder with at most `limit` bytes of shards."""

    folder: Path
    limit: int

    @classmethod
    def of(cls, gigabytes: float | None) -> "ShardCache":
        """Return the cache of this user; CARP_CACHE names another folder, and CARP_CACHE_GB the size if not given."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(os.environ.get("CARP_CACHE") or f"{base}/carp/shards").expanduser()
        text = os.environ.get("CARP_CACHE_GB") or str(DEFAULT_GB)
        try:
            size = float(text) if gigabytes is None else gigabytes
            return cls(folder, int(size * 1e9))
        except (ValueError, OverflowError):
            raise DataError(f"CARP_CACHE_GB must be a number of gigabytes, received '{text}': correct it.") from None

    def open(self, file: RemoteFile) -> int | None:
        """Return a descriptor of the whole shard, downloaded if need be; None if it does not fit or cannot be kept."""
        path = self.folder / f"{file.key}{_SUFFIX}"
        found = _open(path, file.size)
        if found is not None or file.size > self.limit or _process.full_until.get(file.key, 0) > time.monotonic():
            return found
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.folder / f"lock-{int(file.key[:8], 16) % _SLOTS:02d}"):
                found = _open(path, file.size)  # another process may have been faster
                if found is None:
                    self._download(file, path)
                    found = _open(path, file.size)
        except _NoRoomError:
            _process.full_until[file.key] = time.monotonic() + _FULL_SECONDS
        except OSError as error:  # of this folder: the server's are StorageErrors
            _process.full_until[file.key] = time.monotonic() + _FULL_SECONDS
            _warn(f"cannot keep shards in {self.folder}: {error.strerror}. Reading ranges of them, which is slower. "
                  "Free some space, or set CARP_CACHE to another folder.")  # fmt: skip
        return found

    def peek(self, file: RemoteFile) -> int | None:
        """Return a descriptor of the whole shard if it is here already."""
        return _open(self.folder / f"{file.key}{_SUFFIX}", file.size)

    def _download(self, file: RemoteFile, path: Path) -> None:
        with replacing(path) as beside:
            with _locked(self.folder / "lock"):
                self._make_room(file.size)
                descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    _reserve(descriptor, file.size)
                except OSError:
                    os.close(descriptor)
                    raise
            try:
                _fill(file, descriptor)
            finally:
                os.close(descriptor)

    def _make_room(self, size: int) -> None:
        """Remove the shards that were not used for longest; the caller holds the lock."""
        remove_unfinished(self.folder)  # of killed processes
        now, total, unused = time.time(), 0, list[tuple[float, int, Path]]()
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                state = path.stat()
                if path.suffix == _SUFFIX or is_unfinished(path):
                    total += state.st_size
                if path.suffix == _SUFFIX and not is_unfinished(path) and now - state.st_mtime > IN_USE_SECONDS:
                    unused.append((state.st_mtime, state.st_size, path))
        if total + size - sum(bytes_ for _, bytes_, _ in unused) > self.limit:
            raise _NoRoomError
        for _, bytes_, path in sorted(unused):
            if total + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= bytes_


def _fill(file: RemoteFile, descriptor: int) -> None:
    """Download a shard, and check that it did not change meanwhile."""
    if not has_ranges(file.address):
        stream(file, descriptor)
    else:
        step = _PIECE * _PIECES
        for first in range(0, file.size, step):
            starts = range(first, min(first + step, file.size), _PIECE)
            sizes = [min(_PIECE, file.size - start) for start in starts]
            for start, piece in zip(starts, read_ranges(file, starts, sizes), strict=True):
                os.pwrite(descriptor, piece, start)
    again = surely(file, partial(describe, file.address))
    if again != file:
        raise DataError(f"{file} changed while it was being read. Rerun the same command once it is complete.")


def _reserve(descriptor: int, size: int) -> None:
    """Give a file its size, so that it counts, and its space on the disk where the system can do that."""
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _open(path: Path, size: int) -> int | None:
    """Open a shard and note its use; None if it is not here, or not whole."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    state = os.fstat(descriptor)
    if state.st_size != size:
        os.close(descriptor)
        return None
    if abs(time.time() - state.st_mtime) > _TOUCH_SECONDS:
        with suppress(OSError):  # a folder that may only be read
            os.utime(path)
    return descriptor


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file among the threads and the processes that use this cache, however long that takes."""
    with _process.locks[path]:
        pause = 0.01
        while True:
            lock = held(path)
            try:
                lock.__enter__()
            except LockHeldError:
                time.sleep(pause)
                pause = min(0.5, pause * 2)
                continue
            break
        try:
            yield
        finally:
            lock.__exit__(None, None, None)


def _warn(message: str) -> None:
    if not _process.warned:
        _process.warned = True
        sys.stderr.write(f"warning: {message}\n")
        sys.stderr.flush()
