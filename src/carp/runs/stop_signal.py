"""Signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

from carp.compute import distributed

T = TypeVar("T")


class _StoppedWaitingError(KeyboardInterrupt):
    """A signal arrived while nothing was in progress. Not an `Exception`, so that no caller in between handles it."""


class StopSignal:
    """Catches SIGTERM and SIGINT; a second signal takes effect immediately, as if the first had not been caught.

    Several processes that share a run ignore the second signal: Ctrl-C reaches them from the terminal and again from
    torchrun, which kills those that take too long. SIGUSR1 and SIGUSR2 are caught only if a handler is installed:
    submitit uses them for time limits, and its handler runs after the run is saved (runs/cluster.py).
    """

    def __init__(self) -> None:
        self.number = 0
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may catch signals
        of_others = [n for n in (signal.SIGUSR1, signal.SIGUSR2) if callable(signal.getsignal(n))]
        for number in (signal.SIGTERM, signal.SIGINT, *of_others):
            self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def until_signal(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items until a signal arrives while waiting for the next one, which may take a long time.

        Several processes that share a run stop together, after a step.
        """
        iterator = iter(items)
        while True:
            try:
                self._waiting = distributed.world_size() == 1
                item = next(iterator)
                self._waiting = False
            except (_StoppedWaitingError, StopIteration):
                self._waiting = False
                return
            yield item

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self.number and distributed.world_size() == 1:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        self.number = number
        if self._waiting:
            self._waiting = False
            raise _StoppedWaitingError
