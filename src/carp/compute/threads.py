"""Chooses the number of torch's threads on a CPU that other programs may also use.

On an idle machine, one thread per core is best. If another process is busy, this can be far slower than a single
thread, because every operation waits for the thread that is not running. The tuner measures which is better: work comes
in equal units (training steps, batches of images), and it compares their times with different numbers of threads.
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
_BETTER = 0.9  # another number of threads must take at most this fraction of the time
_SLOWER = 1.5  # units that take this many times the best time trigger a new measurement
_RECENT = 3  # units in a row that must be slow
_FIRST_WAIT, _LONGEST_WAIT = 10.0, 240.0  # seconds until more threads are tried again; doubles while that fails


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chosen_by_user() -> int | None:
    """Return the number of threads that the user set in the environment or in Python; None if not set."""
    if "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != available_cores():
        return torch.get_num_threads()
    return None


class OtherLoad:
    """Measures how many cores other programs keep busy from now on; reports 0 on systems other than Linux."""

    def __init__(self) -> None:
        self._start, self._begun = time.monotonic(), self._busy_seconds()

    def cores(self) -> float:
        """Return the average number of busy cores, not counting this process and its children."""
        passed = time.monotonic() - self._start
        return max(0.0, (self._busy_seconds() - self._begun) / passed) if passed > 0 else 0.0

    @staticmethod
    def _busy_seconds() -> float:
        """Return the CPU seconds since the machine started, minus those of this process and its children."""
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
    """Return the numbers of threads to try: `most`, half of it, and so on down to 1."""
    return [most >> n for n in range(most.bit_length())]


def is_tunable(device: torch.device) -> bool:
    """Return whether to look for the best number of threads: on a CPU, unless the user chose the number."""
    return device.type == "cpu" and available_cores() > 1 and chosen_by_user() is None


class ThreadTuner:
    """Finds the number of threads with which units of equal work take the least time, and adapts it when that changes.

    `threads` is the number for the next unit; call `add` with the time that the unit took. The tuner tries `most`, half
    of it, and so on down to 1. When units become much slower, it tries fewer threads; from time to time it tries more.

    Args:
        most: The largest number of threads.
        settled: The number to begin with.
        seconds: The time of a unit with each number, if known; then nothing is tried at the beginning.
        clock: Returns seconds from an arbitrary origin.
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
        self.seconds = dict(seconds or {})  # time of a unit as last measured with each number of threads
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
        """Keep the number until units become slower (False), or until it is time to try more threads (True)."""
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
        """Halve the number of threads as long as that is faster."""
        while self.settled > 1 and (yield from self._try(self.settled // 2)):
            pass

    def _ascend(self) -> Generator[int, float, bool]:
        """Use the next larger number of threads if it is faster."""
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
        """Return the fastest of a few units after a warm-up; stop as soon as one takes longer than `give_up`."""
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
    """Runs units of work with the best number of threads, and restores the previous number at the end.

    It does nothing unless the device is a CPU with several cores and the user has not chosen the number of threads.
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
        """Run one unit of work; all units must take about the same amount of work."""
        if self._tuner is None:
            yield
            return
        torch.set_num_threads(self._tuner.threads)
        start = time.monotonic()
        yield
        self._tuner.add(time.monotonic() - start)
