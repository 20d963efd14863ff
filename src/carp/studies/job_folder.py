"""The run folder of a job: its progress, and what is removed when the job is done."""

from pathlib import Path

from carp.files.atomic import remove
from carp.files.lock import LockHeldError, held
from carp.runs.checkpoint import list_checkpoints, step_of
from carp.runs.run_folder import INDEX
from carp.studies.job_result import JobResult, read_all
from carp.studies.study_folder import lock_of

_LARGE = ("checkpoints", "features", INDEX)


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, from which a run resumes; 0 if there is none."""
    return max((step_of(path) or 0 for path in list_checkpoints(folder / "checkpoints")), default=0)


def remove_large(folder: Path, result: JobResult) -> None:
    """Remove checkpoints and features of a finished job, unless the user wants to keep them."""
    if not result.kept:
        for name in _LARGE:
            if (folder / name).exists():
                remove(folder / name)


def tidy(folder: Path) -> None:
    """Remove the leftovers of jobs that were killed after their result was written."""
    for result in read_all(folder):
        try:
            with held(lock_of(folder, result.job.name)):
                remove_large(folder / result.job.name, result)
        except LockHeldError:  # its process removes them itself
            continue
