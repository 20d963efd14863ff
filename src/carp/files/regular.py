"""Open and read files that a user names: regular files only, up to an expected size.

Opening a named pipe waits for a writer that may never appear, and reading a device may never end. Every problem is an
`OSError` whose `strerror` is the reason, so that callers handle it like a missing file.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

from carp.console.quantities import in_bytes

_OTHER_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder, not a file"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a named pipe, not a regular file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a regular file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a regular file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a regular file"),
)
# Without O_NONBLOCK, opening a pipe that took the place of a file after `stat` would wait for a writer
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CHUNK = 1 << 24
TEXT_BYTES = 64 << 20  # limit for JSON and text files that are read whole; larger than any that CARP writes


def check_regular(path: str | Path) -> int:
    """Raise an OSError unless the path is a regular file; return its size in bytes."""
    return _size(os.stat(path), path)  # noqa: PTH116 - a Path per image is slow


def open_descriptor(path: str | Path) -> int:
    """Open a regular file for reading and return its descriptor. The caller closes it."""
    check_regular(path)  # before opening: opening a device may have side effects
    descriptor = os.open(path, _FLAGS)
    try:
        _size(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading."""
    return cast(BinaryIO, os.fdopen(open_descriptor(path), "rb"))


def read_regular(path: str | Path, limit: int = TEXT_BYTES) -> bytes:
    """Read all bytes of a regular file; one of more than `limit` bytes is rejected before anything is read."""
    descriptor = open_descriptor(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise too_large(path, size, limit)
        found = _read(descriptor, size + 1)
        if len(found) <= size:
            return found
        parts = [found]  # it grew, or it is in /proc, where files have no size
        while (total := sum(map(len, parts))) <= limit:
            if not (more := _read(descriptor, min(_CHUNK, limit + 1 - total))):
                return b"".join(parts)
            parts.append(more)
        raise too_large(path, total, limit)
    finally:
        os.close(descriptor)


def read_text(path: str | Path, limit: int = TEXT_BYTES) -> str:
    """Read a regular file as UTF-8 text; invalid bytes raise a `UnicodeDecodeError`."""
    return read_regular(path, limit).decode("utf-8-sig")


def too_large(path: str | Path, size: int, limit: int) -> OSError:
    """Return the error for a file that is larger than expected."""
    return OSError(errno.EFBIG, f"it has {in_bytes(size)}, more than the limit of {in_bytes(limit)}", str(path))


def _size(state: os.stat_result, path: str | Path) -> int:
    for is_kind, number, reason in _OTHER_KINDS:
        if is_kind(state.st_mode):
            raise OSError(number, reason, str(path))
    return state.st_size


def _read(descriptor: int, count: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the file; one system call reads at most 2 GiB."""
    found = os.read(descriptor, count)
    if len(found) == count or not found:
        return found
    parts = [found]
    while (missing := count - sum(map(len, parts))) and (more := os.read(descriptor, missing)):
        parts.append(more)
    return b"".join(parts)
