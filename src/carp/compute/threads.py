"""How many threads torch computes with on a CPU that may be busy with something else.

On an idle machine, one thread per core is best. Beside another busy process it can be far worse than a single thread,
because every operation waits for the thread that is not running. Which is better here and now is measured: work comes
in equal units (training steps, batches of images), and the tuner compares the time they take with different numbers of
threads.
"""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import torch

_UNITS = 2  # timed in one measurement, after one unit to warm up; the fastest counts
_BETTER = 0.9  # another number of threads must take at most this share of the time
_SLOWER = 1.5  # a pace this much below the best one is a reason to measure again
_RECENT = 3  # units in a row that must be slow
_FIRST_WAIT, _LONGEST_WAIT = 10.0, 240.0  # seconds until more threads are tried again; doubles while that fails


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen_by_user() -> int | None:
    """The number of threads that the user set, by the environment or in Python; None if nobody did."""
    if "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != available_cores():
        return torch.get_num_threads()
    return None


class OtherLoad:
    """Measures how many cores other programs keep busy from now on; on Linux, elsewhere it reports 0."""

    def __init__(self) -> None:
        self._start, self._begun = time.monotonic(), self._busy_seconds()

    def cores(self) -> float:
        """Cores that were busy on average, without this process and its children."""
        passed = time.monotonic() - self._start
        return max(0.0, (self._busy_seconds() - self._begun) / passed) if passed > 0 else 0.0

    @staticmethod
    def _busy_seconds() -> float:
        """Seconds of work of all cores since the machine started, less those of this process and its children."""
        try:
            user, nice, system, _idle, _wait, interrupts, soft, *_ = map(int, _words(Path("/proc/stat"))[1:])
        except (OSError, ValueError):
            return 0.0
        busy = user + nice + system + interrupts + soft
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):  # it may have ended
                fields = stat.read_text().rpartition(")")[2].split()
                if os.getpid() in {int(fields[1]), int(stat.parent.name)}:
                    busy -= int(fields[11]) + int(fields[12])
        return busy / os.sysconf("SC_CLK_TCK")


def _words(path: Path) -> list[str]:
    with path.open() as file:
        return file.readline().split()


def ladder(most: int) -> list[int]:
    """The numbers of threads that are worth a try: `most`, its half, and so on down to 1."""
    return [most >> n for n in range(most.bit_length())]


def is_tunable(device: torch.device) -> bool:
    """Whether it makes sense to look for the best number of threads: on a CPU, unless the user chose it."""
    return device.type == "cpu" and available_cores() > 1 and chosen_by_user() is None


class ThreadTuner:
    """Finds the number of threads with which units of equal work take the least time, and watches that it stays so.

    `threads` is the number for the next unit; `add` reports how long that unit took. Numbers are halved from `most`
    down to 1. A unit much slower than before makes the tuner try fewer threads; now and then it tries more.

    Args:
        most: The largest number of threads.
        settled: The number to begin with.
        seconds: How long a unit took with each number, if that is known: then nothing is tried at the beginning.
        clock: Seconds since any moment.
    """

    def __init__(
        self,
        most: int,
        *,
        settled: int | None = None,
        seconds: Mapping[int, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.settled = most, settled or most
        self.threads = self.settled
        self.seconds = dict(seconds or {})  # of a unit, as last measured with each number of threads
        self._clock = clock
        self._plan = self._decide()
        next(self._plan)

    def add(self, seconds: float) -> None:
        """Report how long a unit took with `threads`."""
        self.threads = self._plan.send(seconds)

    def _decide(self) -> Generator[int, float, None]:
        """Yield the number of threads for the next unit; receive its seconds."""
        if self.settled not in self.seconds:
            yield from self._measure(self.settled)
            yield from self._descend()
        wait = _FIRST_WAIT
        while True:
            more_is_due = yield from self._steady(wait)
            if not more_is_due:
                yield from self._descend()
            elif (yield from self._ascend()):
                wait = _FIRST_WAIT
            else:
                wait = min(2 * wait, _LONGEST_WAIT)

    def _steady(self, wait: float) -> Generator[int, float, bool]:
        """Keep the number until the pace drops (False), or until it is time to try more threads (True)."""
        since, best = self._clock(), self.seconds[self.settled]
        recent = deque[float](maxlen=_RECENT)
        while True:
            recent.append((yield self.settled))
            best = min(best, statistics.median(recent)) if len(recent) == _RECENT else best
            if len(recent) == _RECENT and min(recent) > _SLOWER * best:
                self.seconds[self.settled] = min(recent)
                return False
            if self.settled < self.most and self._clock() - since > wait:
                self.seconds[self.settled] = min(recent)
                return True

    def _descend(self) -> Generator[int, float, None]:
        """Halve the number as long as that is faster."""
        while self.settled > 1 and (yield from self._try(self.settled // 2)):
            pass

    def _ascend(self) -> Generator[int, float, bool]:
        """Take the next larger number if it is faster."""
        larger = self.most
        while larger // 2 > self.settled:
            larger //= 2
        return (yield from self._try(larger))

    def _try(self, threads: int) -> Generator[int, float, bool]:
        now = self.seconds[self.settled]
        if (yield from self._measure(threads, give_up=now)) > _BETTER * now:
            return False
        self.settled = threads
        return True

    def _measure(self, threads: int, give_up: float = float("inf")) -> Generator[int, float, float]:
        """The fastest of a few units after one to warm up; no more of them once one takes longer than `give_up`."""
        yield threads
        fastest = float("inf")
        for _ in range(_UNITS):
            seconds = yield threads
            fastest = min(fastest, seconds)
            if seconds > give_up:
                break
        self.seconds[threads] = fastest
        return fastest


class TunedThreads:
    """Runs units of work with the number of threads that suits the machine, and restores the number at the end.

    Only on a CPU, with several threads, and if the user did not choose their number; otherwise it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._before = torch.get_num_threads()
        self._tuner = ThreadTuner(self._before) if is_tunable(device) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Run one unit of work; all units must be about equal."""
        if self._tuner is None:
            yield
            return
        torch.set_num_threads(self._tuner.threads)
        start = time.monotonic()
        yield
        self._tuner.add(time.monotonic() - start)
