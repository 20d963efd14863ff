"""The folder of a study: the settings that its jobs share, which must not change, and its locks.

FOLDER/NAME/study.json   settings and images of the study
FOLDER/NAME/JOB/         one run folder per job, with job.json when it is done
FOLDER/NAME/locks/       one lock per job, and one for files that the processes share
FOLDER/NAME/table.md …   summary of the finished jobs
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from carp.errors import CheckpointError, received
from carp.files.atomic import write_atomic
from carp.files.lock import LockHeldError, held
from carp.files.regular import read_text

STUDY = "study.json"
_LOCKS = "locks"
_PATIENCE = 60.0  # seconds to wait for a short write of another process


def lock_of(folder: Path, name: str) -> Path:
    """Return the lock file of a job or of the whole study."""
    (folder / _LOCKS).mkdir(parents=True, exist_ok=True)
    return folder / _LOCKS / f"{name}.lock"


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Let one process at a time write what the processes of a study share."""
    end = time.monotonic() + _PATIENCE
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(held(lock_of(folder, "study")))
                break
            except LockHeldError as holder:
                if time.monotonic() > end:
                    raise CheckpointError(
                        f"{folder} is locked by another process: {holder}. Stop it, then rerun the same command."
                    ) from None
                time.sleep(0.05)
        yield


def open_study(folder: Path, common: Mapping[str, Any], *, write: bool = True) -> None:
    """Create the folder of a study, or raise unless an earlier study in it had the same settings and images.

    `common` is what all jobs share, as plain values for JSON: mappings by section, such as settings and data.
    """
    now = json.loads(json.dumps(common))
    if not write and not (folder / STUDY).exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with in_turn(folder):
            if not (folder / STUDY).exists():
                write_atomic(folder / STUDY, json.dumps(now, indent=1) + "\n")
                return
        before = read_study(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the study {folder}: {error.strerror}. Free some space, or use another --out."
        ) from error
    changed = [
        f"{key}: {received(then)} -> {received(new)}"
        for section in now
        for key, then, new in _differences(before.get(section), now[section], section)
    ]
    if changed:
        raise CheckpointError(
            f"{folder} belongs to a study with other settings ({'; '.join(changed)}). Use another --out, or the same "
            "settings to continue it."
        )


def read_study(folder: Path) -> dict[str, Any]:
    """Read what the jobs of a study have in common."""
    try:
        found = json.loads(read_text(folder / STUDY))
        if not isinstance(found, dict):
            raise TypeError("it does not contain an object")
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / STUDY} is damaged: {error}. Restore it, or use another --out.") from None
    return found


def _differences(before: Any, now: Any, section: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield what changed in a section; a setting that an older version did not have is not a difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        yield from ((key, before[key], now[key]) for key in before.keys() & now.keys() if before[key] != now[key])
    elif before != now:
        yield section, before, now
