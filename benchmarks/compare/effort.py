"""Equal effort: the jobs of all methods, and the choice among the trials of one.

Every method has the same number of trials, then one final job per seed. A final job is known from the start but can
only begin when all trials of its method are done; its settings follow from their results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.compare.methods import find_method
from benchmarks.compare.ranges import trial_settings
from carp.studies.job_result import JobResult, read_job_result
from carp.studies.points import Job, Point

CHOSEN = "chosen"
TRIAL_SEED = 0
_TRIAL = "trial "


@dataclass(frozen=True)
class Effort:
    """What every method gets.

    Attributes:
        trials: The number of trials; trial 0 is the published setting.
        seeds: The seeds of the final jobs. They differ from the trials' seed, so that luck does not count twice.
        search_seed: The seed of the draws.
    """

    trials: int = 8
    seeds: tuple[int, ...] = (1, 2, 3)
    search_seed: int = 0

    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """Return one trial of every method, then the next, and at last the final jobs, seed by seed."""
        trials = [self.trial(method, number) for number in range(self.trials) for method in methods]
        return trials + [Job(Point(method, CHOSEN), seed) for seed in self.seeds for method in methods]

    def trial(self, method: str, number: int) -> Job:
        """Return a trial with its settings."""
        search = find_method(method).search
        settings = trial_settings(method, search, number, trials=self.trials, seed=self.search_seed)
        return Job(Point(method, f"{_TRIAL}{number}", settings, place=number), TRIAL_SEED)

    def is_ready(self, folder: Path, job: Job) -> bool:
        """Return whether a job can begin: a final one needs all trials of its method."""
        return not is_final(job) or None not in self._results(folder, job.point.value)

    def with_choice(self, folder: Path, job: Job) -> Job:
        """Return a final job with the settings of the best trial; any other job as it is."""
        if not is_final(job):
            return job
        trials = [result for result in self._results(folder, job.point.value) if result is not None]
        best = choose(trials)
        return replace(job, point=replace(job.point, settings=best.settings, place=best.place))

    def _results(self, folder: Path, method: str) -> list[JobResult | None]:
        names = [self.trial(method, number).name for number in range(self.trials)]
        return [read_job_result(folder / name) for name in names]


def is_final(job: Job) -> bool:
    """Return whether a job trains the chosen setting."""
    return job.point.variant == CHOSEN


def choose(trials: Sequence[JobResult]) -> JobResult:
    """Return the trial with the best k-NN on held-out images.

    A trial that diverged counts as 0. Of equal ones, the first is chosen.
    """
    return max(trials, key=lambda trial: (judgement(trial) or 0.0, -trial.place))


def judgement(trial: JobResult) -> float | None:
    """Return the number that a trial is judged by, that of the better branch; None if it diverged or failed."""
    return max(trial.accuracies.values(), default=None)
