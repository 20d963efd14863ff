"""Writes in the background: the state is copied first, then written in a thread while work continues."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Write = Callable[[], object]


class BackgroundWriter:
    """Runs one write at a time in a thread. An error of the thread is raised by the next call of any method.

    At the end of the block it waits for the last write, unless a second Ctrl-C ends the process: then the write is
    abandoned, which is as safe as being killed.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Write) -> None:
        """Wait for the previous write, then begin this one."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a write that has failed."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif issubclass(kind, Exception) and self._thread is not None:
            self._thread.join()  # the error that ends the block is the cause; one of the thread would hide it

    def _run(self, write: Write) -> None:
        try:
            write()
        except BaseException as error:  # raised again in the main thread
            self._error = error
