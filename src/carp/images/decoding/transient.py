"""Transient errors of the storage or the network, and retries.

A failing disk, file server or network says nothing about the file that was being read. Such a read is retried with
growing pauses; if it still fails, the run stops. The file is not marked as bad, and no other image takes its place, so
that a run depends on the images alone.

Errors about the file itself (it is missing, forbidden, or cannot be decoded) are not retried.
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
FIRST_PAUSE = 1.0  # seconds; each pause is twice as long as the one before: 15 s in total
_SECONDS_OF_OUTAGE = 10.0  # errors within this time have the same cause

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
    """Return whether a retry may succeed after this error."""
    if isinstance(error, TimeoutError | ConnectionError):  # these may have no errno
        return True
    return isinstance(error, OSError) and error.errno in TRANSIENT


class _Outage:
    """State of an outage, shared by the threads of a process: one warns, and if one gives up, all do."""

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
    """Return the result of `read`, retried if the storage fails; `place` identifies the file in messages.

    Raises:
        StorageError: The storage failed every time.
        OSError: Any other error; it is not retried.
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
                    f"cannot read {place}: {reason}. Gave up after {seconds:.0f} s: the storage or the network is "
                    "failing, so no image was marked as bad. Rerun the same command once it works; finished work is "
                    "kept. If only this file fails, restore or remove it."
                ) from error
            if left == TRIES - 1:
                _outage.warn(f"cannot read {place}: {reason}. Retrying up to {left} times.")
        sleep(pause)
        pause *= 2
    raise AssertionError("unreachable")
