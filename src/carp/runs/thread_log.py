"""`threads.jsonl`: the number of threads of every step of a run, one line per change.

Sums over threads are rounded differently when their number changes, so the number is part of a run's state. Every
change is on disk before the step that it affects. A resumed run repeats the recorded numbers, then chooses new ones.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from carp.compute.threads import ThreadTuner
from carp.console.quantities import counted
from carp.errors import CheckpointError, DataError
from carp.files.atomic import write_atomic

THREADS = "threads.jsonl"


class RunThreads:
    """Sets torch's number of threads before every step; restores it at the end.

    Args:
        folder: The run folder.
        step: The step that the run starts or resumes at.
        threads: A fixed number, or None to find the best one.
        most: The largest number to try.
        recorded: The number that the checkpoint was saved with, if any.
        writes: Whether this process writes the record.
        announce: Called with a line when the number changes permanently.
        warn: Called with a line when a resumed run cannot use its recorded number.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int,
        threads: int | None,
        most: int,
        recorded: int | None,
        writes: bool,
        announce: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._path, self._writes, self._announce = folder / THREADS, writes, announce
        self._before, self._most = torch.get_num_threads(), most
        text, changes = _read(self._path)
        past = [change for change in changes if change.step <= step]
        self._planned = [change for change in changes if change.step > step and threads is None]
        if any(change.threads > most for change in self._planned):
            self._planned = []
        began = past[-1].threads if past else recorded
        self.current = self._settled = threads or min(began or most, most)
        if began not in {None, self.current}:
            warn(
                f"this run was saved with {counted(began or 0, 'thread')} and resumes with "
                f"{counted(self.current, 'thread')}: the result will differ in rounding."
            )
        if not past or past[-1].threads != self.current:
            past.append(Change(step, self.current))
        self._last = past[-1]
        self._tuner: ThreadTuner | None = None
        self._tunes = threads is None and most > 1
        kept = "".join(change.line() for change in past + self._planned)
        if writes and kept != text:
            self._write(kept)

    def __enter__(self) -> Self:
        torch.set_num_threads(self.current)
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Run one step with its number of threads."""
        if self._planned and self._planned[0].step == number:
            self._use(self._planned.pop(0))
        if self._planned or not self._tunes:
            yield
            return
        if self._tuner is None:
            self._tuner = ThreadTuner(self._most, settled=self.current, seconds=self._last.seconds)
        tuner = self._tuner
        if tuner.threads != self.current:
            change = Change(number, tuner.threads, dict(tuner.seconds))
            if self._writes:
                self._write(change.line(), append=True)
            self._use(change)
        start = time.monotonic()
        yield
        tuner.add(time.monotonic() - start)
        if tuner.settled != self._settled:
            now, before, self._settled = tuner.settled, self._settled, tuner.settled
            threads, threads_before = counted(now, "thread"), counted(before, "thread")
            times = f"a step takes {tuner.seconds[now]:.3g} s, {tuner.seconds[before]:.3g} s with {threads_before}"
            busy = " The machine is busy with other work." if now < before else ""
            self._announce(f"step {number + 1}: continuing with {threads} ({times}).{busy}")

    def _use(self, change: "Change") -> None:
        self._last, self.current = change, change.threads
        if self._tuner is None:
            self._settled = self.current
        torch.set_num_threads(self.current)

    def _write(self, text: str, *, append: bool = False) -> None:
        """Replace the record or add to it; it is synced to disk before this returns."""
        try:
            if not append:
                write_atomic(self._path, text)
                return
            with self._path.open("a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self._path}: {error.strerror}. The checkpoints are intact; free some space, then rerun "
                "the command."
            ) from error


@dataclass(frozen=True)
class Change:
    """From `step` on, the run uses `threads`; `seconds` is the time of a step with each number so far."""

    step: int
    threads: int
    seconds: dict[int, float] = field(default_factory=dict)

    def line(self) -> str:
        """Return the change as a line of the record."""
        seconds = {str(count): round(value, 6) for count, value in self.seconds.items()}
        return json.dumps({"step": self.step, "threads": self.threads, "seconds": seconds}) + "\n"


def check_record(path: Path) -> None:
    """Raise if a line of the record is damaged."""
    text, changes = _read(path)
    if len(changes) != len(text.splitlines()) or (path.stat().st_size and not text):
        raise DataError(f"line {len(changes) + 1} is not a change of the number of threads")


def _read(path: Path) -> tuple[str, list[Change]]:
    """Return the record as text, and its changes in order; a damaged line ends it."""
    changes = list[Change]()
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return "", changes
    for line in text.splitlines():
        try:
            record = json.loads(line)
            seconds = {int(count): float(value) for count, value in record["seconds"].items()}
            change = Change(int(record["step"]), int(record["threads"]), seconds)
        except (ValueError, KeyError, TypeError, AttributeError):
            break
        if change.threads < 1 or (changes and change.step <= changes[-1].step):
            break
        changes.append(change)
    return text, changes
