"""A lock file that names the process that holds it."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path


class LockHeldError(Exception):
    """Another process holds the lock; the message names it and the time, as far as known."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file; raise `LockHeldError` if another process holds it, or `OSError` if it cannot be written.

    The empty file remains; the lock itself ends with the process. Child processes do not inherit it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not inherited by workers
        except OSError:
            raise LockHeldError(_holder(descriptor)) from None
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


def _own() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _holder(descriptor: int) -> str:
    """Read who holds the lock; earlier versions wrote nothing."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(found['pid'])} on {found['host']}, since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it did not record its process number"
