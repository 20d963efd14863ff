"""The resumable loop behind everything that trains: pretraining, linear classifiers over images, detection.

It resumes from the newest intact state, runs step after step, saves on schedule, and stops on a signal after the
current step. A state is written in the background while the next steps run. Several processes that share the work save
and stop at the same step.
"""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from carp.compute import distributed
from carp.errors import CheckpointError, CollapseError, DataError, Interrupted, ProcessError
from carp.runs.background_writer import BackgroundWriter, Write
from carp.runs.checkpoint import Checkpoint, list_checkpoints, load, load_newest, step_of
from carp.runs.stop_signal import StopSignal

Batch = TypeVar("Batch")
_SECONDS_TO_APPEAR = 90.0  # a network file system may show a new folder to other machines only after a minute
_SECONDS_BETWEEN_LOOKS = 1.0


def newest_state(folder: Path | None, warn: Callable[[str], None]) -> Checkpoint | None:
    """Load the newest intact checkpoint of a folder, if any, and warn about damaged ones.

    Every process calls this. The first one chooses the checkpoint, and all load the same; none continues before all
    have read, so that the first may write again.
    """
    if folder is None:
        return None
    found, problems = load_newest(folder) if distributed.is_first() else (None, [])
    for problem in problems:
        warn(problem)
    chosen = distributed.gather(None if found is None else [found.step, found.digest])[0]
    if chosen is None:
        return None
    if not distributed.is_first():
        found = _load_chosen(folder, *chosen)
    digests = distributed.gather(None if found is None else found.digest)
    for number, digest in enumerate(digests):
        if digest != chosen[1]:
            raise CheckpointError(
                f"process {number} does not see the checkpoint of step {chosen[0]} in {folder} that process 0 resumes "
                "from. Put --out on a file system that all machines share."
            )
    return found


def _load_chosen(folder: Path, step: int, digest: str) -> Checkpoint | None:
    """Load the checkpoint that the first process has chosen; None if it does not appear here."""
    end = time.monotonic() + _SECONDS_TO_APPEAR
    while True:
        for path in list_checkpoints(folder):
            with suppress(CheckpointError):  # it may be visible only in part
                if step_of(path) == step and (found := load(path)).digest == digest:
                    return found
        if time.monotonic() >= end:
            return None
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@dataclass
class ResumableLoop(Generic[Batch]):
    """Takes the steps from `first_step` to `last_step` − 1.

    Args:
        first_step: The number of finished steps.
        last_step: The number of steps in total.
        batches: Yields the batches of steps `first … last − 1`, given (first, last).
        step: Takes one step, given its number and its batch. After a `CollapseError` the step is saved.
        save: Saves the state after a number of steps; None if nothing is kept. Every process calls it. It may return a
            function that writes a copy of the state; this is called in the background. The next save, a signal and the
            end of the loop wait for it.
        save_seconds: The longest time between two saves.
        save_steps: The largest number of steps between two saves.
        must_save: Whether the state after this number of steps is saved in any case.
        work_follows: Whether the command continues after the last step. If so, a signal during the last step stops the
            command.
        progress: Called with (done, total) after every step.
        describe: Names a number of finished steps, for the message of an interruption.
        mark: A number that is the same in all processes that are in step with each other.
    """

    first_step: int
    last_step: int
    batches: Callable[[int, int], Generator[Batch]]
    step: Callable[[int, Batch], None]
    save: Callable[[int], Write | None] | None
    save_seconds: float
    save_steps: int | None = None
    must_save: Callable[[int], bool] = lambda _done: False
    work_follows: bool = False
    progress: Callable[[int, int], None] = lambda _done, _total: None
    describe: Callable[[int, int], str] = lambda done, total: f"step {done} of {total}"
    mark: Callable[[], int] = lambda: 0
    _done: int = field(init=False)
    _writer: BackgroundWriter = field(init=False, default_factory=BackgroundWriter)

    def run(self) -> None:
        """Take all steps that are left; raise `Interrupted` if a signal ends the loop early."""
        self._done, saved_at = self.first_step, time.monotonic()
        with StopSignal() as stop, self._writer, closing(self._batches()) as batches:
            for batch in stop.until_signal(batches):
                self._take_step(batch)
                self._writer.check()
                # Asked once: a signal that arrives later is seen after the next step
                stopped_by, due = self._agree(stop.number, self._is_due(saved_at))
                if due or stopped_by or self._done == self.last_step:
                    self._save()
                    saved_at = time.monotonic()
                if stopped_by and (self._done < self.last_step or self.work_follows):
                    self._writer.wait()
                    raise self._interrupted(stopped_by)
                self.progress(self._done, self.last_step)
            if stop.number and self._done < self.last_step:  # it arrived while waiting for the next batch
                self._save_progress()
                raise self._interrupted(stop.number)

    def _take_step(self, batch: Batch) -> None:
        try:
            self.step(self._done, batch)
        except CollapseError:
            self._done += 1
            self._save_progress()
            raise
        self._done += 1

    def _batches(self) -> Generator[Batch]:
        """Yield the remaining batches. If reading fails, save the finished steps first."""
        try:
            yield from self.batches(self.first_step, self.last_step)
        except DataError:
            self._save_progress()
            raise

    def _is_due(self, saved_at: float) -> bool:
        by_steps = self.save_steps is not None and self._done % self.save_steps == 0
        return by_steps or self.must_save(self._done) or time.monotonic() - saved_at >= self.save_seconds

    def _agree(self, stopped_by: int, due: bool) -> tuple[int, bool]:
        """Agree on stopping and saving, so that all processes do so at the same step; raise if they are out of step."""
        mark = self.mark()
        stopped_by, now, largest, smallest = distributed.all_reduce_max([stopped_by, due, mark, -mark])
        if largest != -smallest:
            raise ProcessError(
                f"the processes of the run are out of step: at step {self._done} they used different partitions. Check "
                "that all of them run the same version of CARP and of torch."
            )
        return stopped_by, bool(now)

    def _save(self) -> None:
        self._writer.wait()  # before the next copy is made, so that there is only one
        if self.save is not None and (write := self.save(self._done)) is not None:
            self._writer.start(write)

    def _save_progress(self) -> None:
        """Save what is done before an error or a signal ends the loop."""
        if self._done > self.first_step:
            self._save()
        self._writer.wait()

    def _interrupted(self, number: int) -> Interrupted:
        kept = "everything is saved. Rerun the same command to resume." if self.save else "nothing was kept."
        place = self.describe(self._done, self.last_step)
        return Interrupted(f"stopped by {signal.Signals(number).name} after {place}; {kept}", number)
