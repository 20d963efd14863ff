"""`carp check`: verify every file that CARP wrote into a folder, against its digest where it has one."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carp.encoders.exports.check_export import check_export_file, check_export_folder, is_export_folder
from carp.errors import DataError
from carp.evaluation.result import read_result
from carp.features.part_file import is_part
from carp.features.store import check_store, is_store
from carp.files.verdicts import Checked, Verdict, judge
from carp.images.index import check_index_file
from carp.runs.check_run import check_checkpoint, check_run, check_run_file, is_checkpoint
from carp.runs.run_folder import is_run
from carp.similarity.index_folder import check_index, is_index
from carp.studies.job_result import RESULT, read_job_result
from carp.studies.study_folder import STUDY, read_study

Check = Callable[[Path], Iterator[Checked]]
# Folders that are verified as a whole
_WHOLE: tuple[tuple[Callable[[Path], bool], Check], ...] = (
    (is_checkpoint, check_checkpoint),
    (is_export_folder, check_export_folder),
)
# Folders with files of their own, which may hold other folders; one folder may be several of these
_OPEN: tuple[tuple[Callable[[Path], bool], Check], ...] = (
    (is_store, check_store),
    (is_index, check_index),
    (is_run, check_run),
)


@dataclass(frozen=True)
class FileCheck:
    """One file, or one folder that is read as a whole."""

    path: str
    verdict: Verdict
    """`ok`: the bytes are those that were written. `readable`: it parses but has no digest. `unfinished`:
    left by a process that was killed; the command that wrote it resumes. `damaged`: see `detail`."""
    detail: str = ""


@dataclass(frozen=True)
class FolderCheck:
    """The verdicts of `carp check` on the files of a folder."""

    folder: Path
    files: list[FileCheck]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not any(file.verdict == "damaged" for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {"folder": str(self.folder), "ok": self.ok, "files": [asdict(file) for file in self.files]}

    def lines(self) -> list[str]:
        """Return one line per file, then a summary."""
        shown = [f"{file.verdict:10} {file.path}{f': {file.detail}' if file.detail else ''}" for file in self.files]
        damaged = sum(file.verdict == "damaged" for file in self.files)
        end = f"{damaged:,} of {len(self.files):,} files are damaged" if damaged else "nothing is damaged"
        return [*shown, f"{self.folder}: {len(self.files):,} files checked, {end}."]


def check_folder(folder: str | Path) -> FolderCheck:
    """Read every file that CARP wrote into a folder completely, and compare it with its digest.

    Files that CARP did not write are ignored.

    Args:
        folder: A run folder, a feature store, a search index, a checkpoint, an export (a file or a folder), or a
            folder that holds any of these.

    Returns:
        One verdict per file; `ok` is true if nothing is damaged.
    """
    root = Path(folder)
    if not root.exists():
        raise DataError(f"there is no file or folder {root}. Give a folder that CARP wrote.")
    found = [
        FileCheck(str(path.relative_to(root)) if path != root else path.name, verdict, detail)
        for path, verdict, detail in _checks(root)
    ]
    if not found:
        raise DataError(
            f"{root} contains nothing that CARP wrote. Give a run folder, a folder of `carp embed` or `carp index`, or "
            "an export of `carp export`."
        )
    return FolderCheck(root, found)


def _checks(path: Path) -> Iterator[Checked]:
    """Yield verdicts on everything below a path, in the order of names."""
    if is_part(path):
        yield path, "unfinished", "left by a process that was stopped; the same command resumes or removes it"
    elif path.is_file():
        yield from _check_file(path)
    elif whole := next((check for is_kind, check in _WHOLE if is_kind(path)), None):
        yield from whole(path)
    elif path.is_dir():
        own: set[str] = set()
        for is_kind, check in _OPEN:
            if is_kind(path):
                checked = list(check(path))
                own |= {found.name for found, _, _ in checked}
                yield from checked
        for inside in sorted(path.iterdir()):
            if inside.name not in own and not inside.is_symlink():
                yield from _checks(inside)


def _check_file(path: Path) -> Iterator[Checked]:
    """Check a file according to its name and folder; yield nothing if CARP did not write it."""
    if path.suffix == ".json" and path.parent.name == "results":
        yield judge(path, lambda: read_result(path), "readable")
    elif path.name == RESULT:
        yield judge(path, lambda: read_job_result(path.parent), "readable")
    elif path.name == STUDY:
        yield judge(path, lambda: read_study(path.parent), "readable")
    elif path.suffix == ".index" and path.parent.name == "index":
        yield judge(path, lambda: check_index_file(path))
    else:
        yield from check_run_file(path)
        yield from check_export_file(path)
