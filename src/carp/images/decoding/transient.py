"""Errors of the storage or the network that may be gone a moment later, and what to do about them.

A disk, a file server or a network that stumbles says nothing about the file that was being read. So such a read is
tried again with growing pauses; when it still fails, the run stops. No file is called bad for it, and no other image
takes its place: what a run sees depends on the images alone.

Errors that do say something about the file (it is missing, may not be read, or cannot be decoded) are not retried.
"""

import errno
import math
import os
import sys
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from carp.errors import StorageError

TRIES = 5
FIRST_PAUSE = 1.0  # seconds; each pause is twice the one before: 15 s in all
_SECONDS_OF_OUTAGE = 10.0  # errors so shortly after each other have one cause

T = TypeVar("T")

_NAMES = (
    # the device, or a file server that lost its state
    "EIO", "EREMOTEIO", "ESTALE", "ENODEV", "ENOLINK", "ECOMM", "EPROTO", "EBUSY", "EKEYEXPIRED",
    # the network
    "ETIMEDOUT", "ETIME", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ECONNABORTED",
    "ECONNREFUSED", "ECONNRESET", "ENOTCONN", "ESHUTDOWN", "EPIPE",
    # this machine: busy, or out of memory, locks or file descriptors
    "EAGAIN", "EINTR", "ENOMEM", "ENOBUFS", "ENFILE", "EMFILE", "ENOLCK",
)  # fmt: skip
TRANSIENT = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))


def is_transient(error: BaseException) -> bool:
    """Whether an error may be gone when the same is tried again."""
    if isinstance(error, TimeoutError | ConnectionError):  # these may have no number
        return True
    return isinstance(error, OSError) and error.errno in TRANSIENT


class _Outage:
    """What the threads of a process know of one outage: they warn once, and when one gives up the others do, too."""

    def __init__(self) -> None:
        self._warned = self._given_up = -math.inf

    def warn(self, message: str) -> None:
        if monotonic() - self._warned >= _SECONDS_OF_OUTAGE:
            self._warned = monotonic()
            sys.stderr.write(f"warning: {message}\n")
            sys.stderr.flush()

    def give_up(self) -> None:
        self._given_up = monotonic()

    def is_given_up(self) -> bool:
        return monotonic() - self._given_up < _SECONDS_OF_OUTAGE


_outage = _Outage()


def retrying(read: Callable[[], T], place: object) -> T:
    """What `read` returns, after some more tries if the storage fails; `place` names in messages what is read.

    Raises:
        StorageError: The storage failed every time.
        OSError: Any other error, at once.
    """
    pause, started = FIRST_PAUSE, monotonic()
    for left in reversed(range(TRIES)):
        try:
            return read()
        except OSError as error:
            if not is_transient(error):
                raise
            reason = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
            if not left or _outage.is_given_up():
                _outage.give_up()
                seconds = monotonic() - started
                raise StorageError(
                    f"cannot read {place}: {reason}. Gave up after {seconds:.0f} s: the storage or the network fails, "
                    "so no image was marked as bad. Run the same command again when it works; what was done is kept. "
                    "If only this file fails, restore or remove it."
                ) from error
            if left == TRIES - 1:
                _outage.warn(f"cannot read {place}: {reason}. Trying again up to {left} times.")
        sleep(pause)
        pause *= 2
    raise AssertionError("unreachable")
