"""The record of a job: one small file in its run folder, written when everything else is done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from carp.errors import DataError
from carp.files.atomic import write_atomic
from carp.files.regular import read_text
from carp.studies.points import Job, Point

RESULT = "job.json"


class Measured(BaseModel):
    """The measurements of a job.

    Attributes:
        accuracies: Shares between 0 and 1 by branch; empty if training diverged.
        measures: Further shares by the name of the measure, then by branch.
        kl_to_uniform: Mean over the last fifth of the run; None if nothing was logged.
        kl_limit: Its value if one prototype of each block takes all images: ln N_B.
        verdict: The last verdict on the run.
        seconds: The time of the job; None if most of it was done before an interruption, in an unknown time.
        cpu_seconds: The processor time of training; None as above.
        steps: Steps of the run.
        resumed_at: The step that the job was resumed at; 0 if it ran through.
        notes: Remarks on the numbers.
    """

    model_config = ConfigDict(frozen=True)

    accuracies: dict[str, float]
    measures: dict[str, dict[str, float]] = {}
    kl_to_uniform: float | None = None
    kl_limit: float | None = None
    verdict: str = ""
    seconds: float | None = None
    cpu_seconds: float | None = None
    steps: int = 0
    resumed_at: int = 0
    notes: tuple[str, ...] = ()


class JobResult(Measured):
    """The description and the measurements of a job. Keys of later versions are ignored."""

    schema_version: int = 1
    study: str
    value: str
    variant: str = ""
    seed: int
    place: float = 0.0
    published_as: str = ""
    settings: dict[str, Any] = {}
    kept: bool = False
    """Whether checkpoints and features were kept on request."""
    versions: dict[str, str] = {}

    @classmethod
    def of(cls, study: str, job: Job, measured: Measured, *, kept: bool, versions: Mapping[str, str]) -> Self:
        """Return the result of a job that is done."""
        point = job.point
        return cls(
            **measured.model_dump(),
            study=study,
            value=point.value,
            variant=point.variant,
            seed=job.seed,
            place=point.place,
            published_as=point.published_as,
            settings=dict(point.settings),
            kept=kept,
            versions=dict(versions),
        )

    @property
    def point(self) -> Point:
        """The point of the grid that it belongs to."""
        return Point(self.value, self.variant, self.settings, self.place, self.published_as)

    @property
    def job(self) -> Job:
        """The job that it is the result of."""
        return Job(self.point, self.seed)

    @property
    def accuracy(self) -> float | None:
        """The number to compare: the teacher's, or the student's where there is no teacher; 0 if training diverged."""
        return next((self.accuracies[branch] for branch in ("teacher", "student") if branch in self.accuracies), None)

    def write(self, folder: Path) -> None:
        """Write it into the folder of the job."""
        try:
            write_atomic(folder / RESULT, self.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise DataError(
                f"cannot write {folder / RESULT}: {error.strerror or error}. Free some space, then rerun the same "
                "command."
            ) from error


def read_job_result(folder: Path) -> JobResult | None:
    """Read the result of a job; None if it has none yet."""
    path = folder / RESULT
    try:
        return JobResult.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise DataError(f"cannot read {path}: {reason}. Remove it to run the job again.") from None


def read_all(folder: Path) -> list[JobResult]:
    """Read the results of all jobs of a study that are done."""
    found = (read_job_result(path.parent) for path in sorted(folder.glob(f"*/{RESULT}")))
    return [result for result in found if result is not None]
