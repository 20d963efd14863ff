"""A process that ends with the one that started it, however that ends.

SIGKILL, or a system out of memory, leaves a process no time to end its children. So the children watch: on Linux the
kernel does it for them (`PR_SET_PDEATHSIG`), or a thread waits for the end of the parent (a file descriptor of the
process where the system has one, else a look at the parent's number twice a second).

They end by SIGKILL, too: everything that a run writes survives that, and a process that waits for others in vain would
not heed anything gentler.
"""

import ctypes
import os
import select
import signal
import sys
import threading
import time

LAUNCHER = "CARP_LAUNCHER"  # environment variable: the process that starts the processes of a run
_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.5


class _Followed:
    launcher = False


def follow_launcher() -> None:
    """Under torchrun, end with it; elsewhere this does nothing."""
    if _Followed.launcher or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    _Followed.launcher = True
    parent = int(os.environ.get(LAUNCHER, os.getppid()))
    if not _asked_kernel():
        end_with(parent)
    if os.getppid() != parent:  # it ended before it was watched
        _end()


def end_with(process: int) -> None:
    """End this process when another one ends: its parent, or one that its parent belongs to."""
    threading.Thread(target=_watch, args=(process, os.getppid()), name="parent", daemon=True).start()


def _asked_kernel() -> bool:
    """Let the kernel end this process with the thread that started it: for children of a main thread only."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(process: int, parent: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:  # it has ended
        pass
    except (OSError, AttributeError):  # this system has no such descriptors
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    else:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
