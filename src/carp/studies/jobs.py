"""Runs the jobs of a study: each exactly once, even if processes are killed or share the jobs.

A job that has a result is never repeated. A job that another process has locked is skipped and checked again at the
end. An interrupted job has no result, so it runs again, and its run resumes from its newest checkpoint.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from carp.compute import distributed
from carp.console.quantities import duration
from carp.errors import CheckpointError
from carp.files.lock import LockHeldError, held
from carp.studies.job_result import JobResult, read_all, read_job_result
from carp.studies.points import Job
from carp.studies.study_folder import lock_of

Say = Callable[[str], None]
Work = Callable[[Job, Path], None]
_NONE = -1


@dataclass
class JobQueue:
    """The jobs of a study that are left, in order.

    Attributes:
        folder: The folder of the study.
        jobs: All jobs of the study.
        work: Runs one job in its folder and writes its result. Every process of the study calls it (torchrun).
        say: Prints a line.
        done: Called in the first process after every job.
        label: The meaning of the values, for messages.
        ready: Whether a job can start now; one that needs the results of other jobs waits for them.
    """

    folder: Path
    jobs: Sequence[Job]
    work: Work
    say: Say
    done: Callable[[], object] = lambda: None
    label: str = ""
    ready: Callable[[Job], bool] = lambda _job: True
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Jobs that other processes were working on at the end, and these processes."""
    _earlier: set[str] = field(default_factory=set, init=False)
    _own: set[str] = field(default_factory=set, init=False)

    def run(self) -> int:
        """Run all jobs that are free, until none is left; return how many this process has run."""
        self._earlier = {result.job.name for result in read_all(self.folder)}
        count = 0
        while self._run_next():
            count += 1
        for name, holder in self.elsewhere.items():
            self.say(f"{name} is left to another process: {holder}.")
        return count

    def _run_next(self) -> bool:
        with ExitStack() as lock:
            number = self._take(lock) if distributed.is_first() else _NONE
            number = int(distributed.gather(number)[0])
            if number == _NONE:
                return False
            job = self.jobs[number]
            if distributed.is_first():
                self.say(self._announcement(job))
            self.work(job, self.folder / job.name)
            self._own.add(job.name)
        if distributed.is_first():
            self.done()
        return True

    def _take(self, stack: ExitStack) -> int:
        """Lock the next job that has no result, and return its number."""
        self.elsewhere = {}
        for number, job in enumerate(self.jobs):
            if read_job_result(self.folder / job.name) is not None or not self.ready(job):
                continue
            try:
                lock = stack.enter_context(ExitStack())
                lock.enter_context(held(lock_of(self.folder, job.name)))
            except LockHeldError as holder:
                self.elsewhere[job.name] = str(holder)
                continue
            except OSError as error:
                raise CheckpointError(
                    f"cannot write the study {self.folder}: {error.strerror}. Free some space, or use another --out."
                ) from error
            if read_job_result(self.folder / job.name) is None:
                return number
            lock.close()  # another process finished it in the meantime
        return _NONE

    def _announcement(self, job: Job) -> str:
        finished = read_all(self.folder)
        names = {result.job.name for result in finished}
        left = [other for other in self.jobs if other.name not in names]
        done = len(self.jobs) - len(left)
        seconds = estimate(left, self._at_own_pace(finished), self.jobs)
        time_left = "" if seconds is None else f", about {duration(seconds)} left for {len(left)}"
        return f"job {done + 1} of {len(self.jobs)}: {f'{self.label} {job.title}'.strip()}{time_left}"

    def _at_own_pace(self, finished: Sequence[JobResult]) -> list[JobResult]:
        """Rescale the times of jobs that were finished before, perhaps on another machine, by those of this process."""
        earlier = [result for result in finished if result.job.name in self._earlier]
        own = [result for result in finished if result.job.name in self._own and result.seconds is not None]
        expected = estimate([result.job for result in own], earlier, self.jobs)
        if not own or not expected:
            return list(finished)
        pace = sum(result.seconds or 0.0 for result in own) / expected
        rescaled = [
            each.model_copy(update={"seconds": pace * each.seconds}) for each in earlier if each.seconds is not None
        ]
        return [*rescaled, *(result for result in finished if result.job.name not in self._earlier)]


def estimate(left: Sequence[Job], finished: Sequence[JobResult], jobs: Sequence[Job]) -> float | None:
    """Estimate the seconds for the remaining jobs: as long as others of the same point, or else of the same value.

    Jobs of other values are estimated by their relative cost. None if no finished job has a time.
    """
    costs = {job.point.title: job.point.cost for job in jobs}
    timed = [result for result in finished if result.seconds is not None and result.point.title in costs]
    if not timed:
        return None
    titles, values = _mean_times(timed, "title"), _mean_times(timed, "value")
    rate = sum(result.seconds or 0.0 for result in timed) / sum(costs[result.point.title] for result in timed)

    def expected(job: Job) -> float:
        point = job.point
        return titles.get(point.title) or values.get(point.value) or rate * point.cost

    return sum(expected(job) for job in left)


def _mean_times(timed: Sequence[JobResult], name: Literal["title", "value"]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for result in timed:
        times.setdefault(getattr(result.point, name), []).append(result.seconds or 0.0)
    return {key: statistics.mean(seconds) for key, seconds in times.items()}
