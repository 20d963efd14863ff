"""The results of all datasets, and the rule that no method's number comes from more trials than another's."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.baselines import BASELINE, TITLES, baseline_jobs
from benchmarks.compare.effort import CHOSEN, Effort, choose, is_final
from benchmarks.compare.measures import KNN
from benchmarks.compare.methods import KNOWN, METHODS
from carp.errors import DataError
from carp.studies.job_result import JobResult, read_all
from carp.studies.points import Job
from carp.studies.study import BRANCHES, Mean
from carp.studies.study_folder import STUDY, read_study


@dataclass(frozen=True)
class Finals:
    """The final jobs of a method or a baseline on one dataset: a row of the table."""

    name: str
    title: str
    finals: tuple[JobResult, ...]

    def mean(self, measure: str, branch: str) -> Mean | None:
        """Return the mean of a measure over the final jobs; None if the method has no such branch."""
        return Mean.of(values_of(result, measure).get(branch) for result in self.finals)

    @property
    def branch(self) -> str:
        """The branch of the summary."""
        return "student"

    def best(self, measure: str) -> float:
        """Return the better branch's mean, for the order of a plot."""
        found = [self.mean(measure, branch) for branch in BRANCHES]
        return max((mean.mean for mean in found if mean is not None), default=0.0)

    @property
    def cpu_seconds(self) -> float | None:
        """The mean processor time of a final training."""
        found = [result.cpu_seconds for result in self.finals if result.cpu_seconds is not None]
        return sum(found) / len(found) if found else None


@dataclass(frozen=True)
class MethodResults(Finals):
    """All trials and all final jobs of one method on one dataset."""

    trials: tuple[JobResult, ...]

    @property
    def chosen(self) -> JobResult:
        """The trial that was chosen."""
        return choose(self.trials)

    @property
    def branch(self) -> str:
        """The better branch of the chosen trial, so that test images do not choose it."""
        accuracies = self.chosen.accuracies
        return max(accuracies, key=lambda branch: accuracies[branch], default="student")


@dataclass(frozen=True)
class DatasetResults:
    """The methods whose trials are done, the baselines, and what is missing, on one dataset.

    Attributes:
        missing: The jobs that are left of the methods that have begun.
        not_begun: The titles of the methods without any job, if another method has one; ideas are not among them.
    """

    name: str
    study: dict[str, Any]
    methods: tuple[MethodResults, ...]
    baselines: tuple[Finals, ...]
    missing: tuple[Job, ...]
    not_begun: tuple[str, ...]
    trials: tuple[JobResult, ...]

    @property
    def effort(self) -> Effort:
        """The effort of every method."""
        return effort_of(self.study)

    @property
    def tested(self) -> list[MethodResults]:
        """The methods with a final job."""
        return [row for row in self.methods if row.finals]

    @property
    def choices(self) -> str | None:
        """The comparison whose trials chose the settings; None if this one's did."""
        return self.study.get("choices")


def values_of(result: JobResult, measure: str) -> dict[str, float]:
    """Return a measure of a job by branch."""
    return result.accuracies if measure == KNN else result.measures.get(measure, {})


def title_of(name: str) -> str:
    """Return the title of a method or a baseline."""
    return TITLES[name] if name in TITLES else KNOWN[name].title


def effort_of(study: dict[str, Any]) -> Effort:
    """Return the effort that a study was begun with."""
    return Effort(study["effort"]["trials"], tuple(study["effort"]["seeds"]), study["effort"]["search_seed"])


def read_results(out: Path) -> list[DatasetResults]:
    """Read all datasets of a folder, in the order of their names."""
    return [_read_dataset(path.parent) for path in sorted(out.glob(f"*/{STUDY}"))]


def _read_dataset(folder: Path) -> DatasetResults:
    study, results = read_study(folder), read_all(folder)
    effort, choices = effort_of(study), study.get("choices")
    searched = results if choices is None else read_all(folder.with_name(choices))
    trials = [result for result in searched if result.variant not in (CHOSEN, BASELINE)]
    started = [name for name in KNOWN if any(result.value == name for result in results)]
    begun = any(result.variant in (CHOSEN, BASELINE) for result in results)  # otherwise another comparison may do them
    jobs = [job for job in effort.jobs(started) if (begun if is_final(job) else choices is None)]
    wanted = [*jobs, *(baseline_jobs(effort.seeds) if begun else ())]
    done = {result.job.name for result in results}
    finals = [result for result in results if result.variant == CHOSEN]
    _check_equal_effort(folder, effort, [trial for trial in trials if trial.value in started], finals)
    tried = [name for name in started if sum(trial.value == name for trial in trials) == effort.trials]
    measured = {result.value for result in results if result.variant == BASELINE}
    return DatasetResults(
        folder.name,
        study,
        tuple(_of_method(name, trials, results) for name in tried),
        tuple(_of_baseline(name, results) for name in TITLES if name in measured),
        tuple(job for job in wanted if job.name not in done),
        tuple(METHODS[name].title for name in METHODS if name not in started) if METHODS.keys() & started else (),
        () if choices else tuple(sorted(trials, key=lambda result: (list(KNOWN).index(result.value), result.place))),
    )


def _of_method(name: str, trials: Sequence[JobResult], results: Sequence[JobResult]) -> MethodResults:
    own = sorted((trial for trial in trials if trial.value == name), key=lambda trial: trial.place)
    return MethodResults(name, title_of(name), _by_seed(name, CHOSEN, results), tuple(own))


def _of_baseline(name: str, results: Sequence[JobResult]) -> Finals:
    return Finals(name, title_of(name), _by_seed(name, BASELINE, results))


def _by_seed(name: str, variant: str, results: Sequence[JobResult]) -> tuple[JobResult, ...]:
    found = [result for result in results if (result.value, result.variant) == (name, variant)]
    return tuple(sorted(found, key=lambda result: result.seed))


def _check_equal_effort(folder: Path, effort: Effort, trials: list[JobResult], finals: list[JobResult]) -> None:
    """Raise if a tested method has other trials than the study prescribes, or another setting than they chose."""
    for name in dict.fromkeys(result.value for result in (*trials, *finals)):
        own = [trial for trial in trials if trial.value == name]
        prescribed = {job.name: job.point.settings for job in (effort.trial(name, n) for n in range(effort.trials))}
        tested = [final for final in finals if final.value == name]
        extra = [trial.job.name for trial in own if prescribed.get(trial.job.name) != trial.settings]
        if extra or (tested and len(own) != effort.trials):
            raise DataError(
                f"{name} has {len(own)} trials in {folder}, and every method has {effort.trials}"
                f"{f' (not prescribed: {extra[0]})' if extra else ''}. Remove its final jobs and what is too much, "
                "then run the comparison again."
            )
        if any(final.settings != choose(own).settings for final in tested):
            raise DataError(
                f"{name} was tested in {folder} with another setting than its trials chose. Remove its final jobs, "
                "then run the comparison again."
            )
