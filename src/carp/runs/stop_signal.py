"""Signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

from carp.compute import distributed

T = TypeVar("T")


class _StoppedWaitingError(KeyboardInterrupt):
    """A signal arrived while nothing was in progress. Not an `Exception`: nobody on the way may handle it."""


class StopSignal:
    """Catches SIGTERM and SIGINT; the second one acts at once, as if nobody had caught the first.

    Not so where several processes share a run: Ctrl-C reaches them from the terminal and again from torchrun, which
    itself ends those that take too long. SIGUSR1 and SIGUSR2 are caught where somebody else does: that is how submitit
    learns of a time limit, and it may wait until the run is saved (runs/cluster.py).
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
        """Yield the items until a signal arrives while the next one is waited for, which may take long.

        Where several processes share a run they stop together, after a step.
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
