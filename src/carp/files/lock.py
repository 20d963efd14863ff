"""A lock file that names the process that holds it.

On NFS, the server keeps the lock of a machine that was lost until the machine's lease expires, 90 seconds by default.
Whoever resumes the run elsewhere must be able to wait for that long.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

NFS_LEASE = 100.0  # seconds, a little more than the usual lease
_HELD = {errno.EACCES, errno.EAGAIN}  # the others say that the file system has no locks, or is out of them
_SECONDS_BETWEEN_ATTEMPTS = 1.0


class LockHeldError(Exception):
    """Another process holds the lock; the message names it and the time, as far as known."""


class NoLocksError(OSError):
    """The file system does not support locks."""


@contextmanager
def held(path: Path, *, patience: float = 0.0, waiting: Callable[[str], None] = lambda _holder: None) -> Iterator[None]:
    """Hold a lock file; raise `LockHeldError` if another process holds it, or `OSError` if it cannot be written.

    The empty file remains; the lock itself ends with the process. Child processes do not inherit it.

    Args:
        path: The lock file.
        patience: Seconds to wait for a holder on another machine, which may no longer exist. A holder on this machine
            exists, because the system releases the locks of a process that ends.
        waiting: Called once with the description of the holder, before waiting.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        end = time.monotonic() + patience
        while not _take(descriptor):
            holder, host = _holder(descriptor)
            if host in {None, socket.gethostname()} or time.monotonic() >= end:
                raise LockHeldError(holder)
            waiting(holder)
            waiting = _silent
            time.sleep(min(_SECONDS_BETWEEN_ATTEMPTS, max(0.0, end - time.monotonic())))
        with suppress(OSError):  # a full disk must not keep a finished run from being opened
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_own()).encode(), 0)
        try:
            yield
        finally:
            with suppress(OSError):  # the lock is released in any case
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Try to lock an open file; return whether that succeeded."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not inherited by workers
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise NoLocksError(error.errno, error.strerror) from error
    return True


def _silent(_holder: str) -> None:
    """Announce nothing."""


def _own() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _holder(descriptor: int) -> tuple[str, str | None]:
    """Read who holds the lock, and on which machine; None if unknown, because earlier versions wrote nothing."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(found['pid'])} on {found['host']}, since {found['since']}", str(found["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "it did not record its process number", None
