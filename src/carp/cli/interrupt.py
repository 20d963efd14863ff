"""Ctrl-C: one line at once, a quick exit with code 130, and no traceback.

Python runs a signal handler in the main thread, between two of its instructions. A batch in the encoder, a search or an
import can keep that thread busy for half a minute, so a second thread is notified of every Ctrl-C at once
(`signal.set_wakeup_fd`) and acts if the main thread does not:

- During an import, or before the command begins, the process ends at once. No work has begun. An exception inside an
  import may be lost, and before the command begins none is caught.
- During other work, the main thread gets `KeyboardInterrupt`. If it has not ended within `_GRACE` seconds, the process
  ends anyway. That is as safe as being killed, which every command survives.
- A training loop, which saves its state first, has its own handler (`runs/stop_signal.py`). One line is printed.
- A second Ctrl-C ends the process at once.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, NoReturn, Self

INTERRUPTED = 130
_GRACE = 1.5  # seconds that a command without anything to save has to end
_STOPPING = "stopping after the current step is finished and saved. Press Ctrl-C again to end at once."
# Commands that keep finished work: steps of a run, features, copies of images
_RESUMING = ("train", "demo", "embed", "eval", "duplicates", "data attack")
_SHOW_CURSOR = "\x1b[?25h\n"  # a progress bar hides it


class CtrlC:
    """Handles SIGINT from `__enter__` to `__exit__`, in the main thread of a process that does not ignore it."""

    def __init__(self, message: Callable[[], str]) -> None:
        """`message` returns the line to print for an interrupted command."""
        self._message = message
        self._pid = os.getpid()
        self.raises = False  # KeyboardInterrupt on Ctrl-C; false until it is caught somewhere
        self.raised = False  # KeyboardInterrupt, in the main thread
        self._active = self._signalled = self._printed = False
        self._ended = threading.Event()
        self._printing = threading.RLock()

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGINT) in {signal.SIG_IGN, None}:
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        _pipes.add(self._write)
        self._handler_before = signal.signal(signal.SIGINT, self._handle)
        threading.Thread(target=self._watch, name="Ctrl-C", daemon=True).start()
        self._active = True
        return self

    def __exit__(self, *_: object) -> None:
        if not self._active or os.getpid() != self._pid:
            return
        self._ended.set()
        if self._signalled and self._printed:  # no second exception may disturb the end, and no thread may delay it
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
            return
        signal.signal(signal.SIGINT, self._handler_before)
        signal.set_wakeup_fd(self._wakeup_before)
        _pipes.discard(self._write)
        os.close(self._write)  # the thread reads the end of the file, and returns

    def print_once(self, line: str) -> None:
        """Print the last line of an interrupted command, once."""
        with self._printing:
            if not self._printed:
                self._printed = True
                sys.stderr.write(f"carp: {line}\n")
                sys.stderr.flush()

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        """Runs in the main thread as soon as it executes Python code."""
        if os.getpid() != self._pid:
            return  # in a forked worker the parent decides
        if not self.raises or _is_importing() or (frame and frame.f_code.co_filename.startswith("<frozen importlib")):
            self._end_now()
        self.raised = True
        raise KeyboardInterrupt

    def _watch(self) -> None:
        """Runs in its own thread and receives one byte per signal."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # so that the main thread can put a signal off
        count = 0
        while received := os.read(self._read, 1):
            if received[0] != signal.SIGINT:
                continue
            count += 1
            self._signalled = True
            if count > 1 and _alone():
                self._end_now()
            if signal.getsignal(signal.SIGINT) != self._handle:  # a loop saves its state first
                if _alone():
                    sys.stderr.write(f"carp: {_STOPPING}\n")
            elif _is_importing():
                self._end_now()
            else:
                threading.Thread(target=self._end_soon, daemon=True).start()
        os.close(self._read)

    def _end_soon(self) -> None:
        self._ended.wait(_GRACE)
        if self._ended.is_set() and not self._printed:
            return  # it ended by itself
        if self._ended.is_set():
            threading.Event().wait(_GRACE)  # its threads and workers may still need to end
        self._end_now()

    def _end_now(self) -> NoReturn:
        with self._printing:  # the other thread may be about to end the process as well
            if not self._printed:
                self._printed = True
                cursor = _SHOW_CURSOR if os.isatty(2) else ""
                os.write(2, f"{cursor}carp: {self._message()}\n".encode(errors="backslashreplace"))
            os._exit(INTERRUPTED)


def end_process(code: int) -> NoReturn:
    """End this process without the interpreter's clean-up, which takes seconds with torch loaded.

    A Ctrl-C that arrives now is too late to matter.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of a pipe may be gone, as in `carp settings | head`
            stream.flush()
    os._exit(code)


def interrupted_line() -> str:
    """Return the line for an interrupted command: whether rerunning it resumes."""
    command = " ".join(sys.argv[1:3])
    resumes = any(f"{command} ".startswith(f"{name} ") for name in _RESUMING) and "--dry-run" not in sys.argv
    return "interrupted." + (" Finished work is kept; rerun the same command to resume." if resumes else "")


def _alone() -> bool:
    """Return whether no other process shares the work; torchrun sends every Ctrl-C a second time."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def _is_importing() -> bool:
    """Return whether a module is being imported."""
    modules: list[Any] = list(sys.modules.values())
    specs = (module.__dict__.get("__spec__") for module in modules if isinstance(module, ModuleType))
    return any(getattr(spec, "_initializing", False) for spec in specs)


_pipes: set[int] = set()  # receive the signals of this process


def _detach_child() -> None:
    """Detach a forked worker from its parent's pipe, so that a signal to both is not counted twice."""
    if _pipes:
        signal.set_wakeup_fd(-1)
        _pipes.clear()


os.register_at_fork(after_in_child=_detach_child)
