"""Work that takes seconds or minutes, while the server keeps answering: one thread per lane; results are kept.

A request asks for a result by its key. The first one starts the work; until it is done, all requests get its progress.
"""

import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from carp.errors import CarpError
from carp.features.extract import Progress

Key = tuple[Hashable, ...]
Compute = Callable[[Progress], Any]
QUICK, SLOW, COPIES = "quick", "slow", "duplicates"  # lanes: seconds; minutes; minutes, on request
_NICE = 5


class _StoppedError(Exception):
    """The server ends."""


@dataclass
class Task:
    """One piece of work."""

    key: Key
    compute: Compute
    progress: tuple[int, int] = (0, 0)
    """What is done, and all; 0 is unknown."""
    done: bool = False
    value: Any = None
    error: str | None = None
    """What is wrong, if the work was not possible."""
    finished: threading.Event = field(default_factory=threading.Event)


class Background:
    """Computes results and keeps the newest of each kind."""

    def __init__(self, kept: int = 6) -> None:
        """Keep so many results of a kind, which is the first part of their keys."""
        self._kept, self._lock = kept, threading.Condition()
        self._tasks: OrderedDict[Key, Task] = OrderedDict()
        self._lanes: dict[str, deque[Task]] = {}
        self._stopped = False

    def ask(self, key: Key, compute: Compute, lane: str = QUICK) -> Task:
        """Return the task with this key, which is queued if it is new.

        A task of the same kind that still waits is dropped: the person has moved on.
        """
        with self._lock:
            if (known := self._tasks.get(key)) is not None:
                self._tasks.move_to_end(key)
                return known
            task = self._tasks[key] = Task(key, compute)
            if lane not in self._lanes:
                self._lanes[lane] = deque()
                threading.Thread(target=self._work, args=(lane,), name=f"explore {lane}", daemon=True).start()
            waiting = self._lanes[lane]
            for other in [each for each in waiting if each.key[:2] == key[:2]]:
                waiting.remove(other)
                self._tasks.pop(other.key, None)
            waiting.append(task)
            self._lock.notify_all()
            return task

    def stop(self) -> None:
        """End the threads as soon as their work reports progress."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def _work(self, lane: str) -> None:
        if lane != QUICK and sys.platform == "linux":  # where threads have priorities: clicks are answered first
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._lock:
                while not self._lanes[lane] and not self._stopped:
                    self._lock.wait()
                if self._stopped:
                    return
                task = self._lanes[lane].popleft()

            def report(done: int, total: int, task: Task = task) -> None:
                task.progress = done, total
                if self._stopped:
                    raise _StoppedError

            try:
                task.value = task.compute(report)
            except CarpError as error:
                task.error = str(error)
            except _StoppedError:
                return
            except MemoryError:
                task.error = "there is not enough memory for this. Explore fewer images, or close programs."
            except Exception as error:
                task.error = f"this failed ({type(error).__name__}: {error}). Please report it as a bug."
            task.done = True
            task.finished.set()
            self._forget(task)

    def _forget(self, newest: Task) -> None:
        """Forget the oldest results of a kind that has too many."""
        with self._lock:
            same = [key for key, task in self._tasks.items() if key[0] == newest.key[0] and task.done]
            for key in same[: max(0, len(same) - self._kept)]:
                del self._tasks[key]
