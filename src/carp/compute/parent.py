"""Lets a process end together with the process that started it, even if that one is killed.

A process that is killed by SIGKILL or by the out-of-memory killer cannot end its children, so the children watch their
parent. On Linux the kernel does this (`PR_SET_PDEATHSIG`). Otherwise a thread waits for the end of the parent, through
a pidfd if the system has them, or by checking the parent's process id twice a second.

The children end by SIGKILL too: everything that a run writes survives it, and a process that is blocked in a collective
operation would not react to another signal.
"""

import ctypes
import os
import select
import signal
import sys
import threading
import time

LAUNCHER = "CARP_LAUNCHER"  # environment variable: id of the process that starts the processes of a run
SUPERVISOR = "CARP_SUPERVISOR"  # environment variable: id of the process that runs several copies of a command
_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_CHECKS = 0.5


class _Followed:
    launcher = False


def follow_launcher() -> None:
    """Under torchrun, or as one of several copies of a command, end together with the parent; otherwise do nothing."""
    supervisor = os.environ.pop(SUPERVISOR, None)  # not for the processes that this one starts
    if _Followed.launcher or (supervisor is None and "TORCHELASTIC_RUN_ID" not in os.environ):
        return
    _Followed.launcher = True
    parent = int(supervisor or os.environ.get(LAUNCHER) or os.getppid())
    if not _asked_kernel():
        end_with(parent)
    if os.getppid() != parent:  # it ended before we watched it
        _end()


def end_with(process: int) -> None:
    """End this process when another process ends: its parent, or a process that its parent belongs to."""
    threading.Thread(target=_watch, args=(process, os.getppid()), name="parent", daemon=True).start()


def _asked_kernel() -> bool:
    """Let the kernel end this process with the thread that started it; only for children of a main thread."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(process: int, parent: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:  # it has already ended
        pass
    except (OSError, AttributeError):  # the system has no pidfds
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_CHECKS)
    else:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
