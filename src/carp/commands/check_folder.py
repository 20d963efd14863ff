"""`carp check`: verify every file that CARP wrote into a folder, against its digest where it has one."""

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from carp.encoders.exports import FORMATS
from carp.encoders.layers import tensors_hash
from carp.encoders.read_export import MARK
from carp.errors import CheckpointError, DataError
from carp.evaluation.result import read_result
from carp.features.part_file import is_part
from carp.features.store import MANIFEST as STORE
from carp.features.store import is_store, read_manifest, store_files
from carp.images.index import check_index_file
from carp.runs.checkpoint import list_checkpoints
from carp.runs.checkpoint import load as load_checkpoint
from carp.runs.run_folder import is_run, open_run
from carp.runs.run_log import read_metrics
from carp.similarity.vector_index import MANIFEST as INDEX
from carp.similarity.vector_index import VECTORS, check_vectors, is_index, read_index_manifest

Verdict = Literal["ok", "readable", "unfinished", "damaged"]
_SEARCHED = 2**16  # bytes
_NO_DIGEST = "written before there were digests: only its form was checked"


@dataclass(frozen=True)
class FileCheck:
    """One file, or one folder that is read as a whole."""

    path: str
    verdict: Verdict
    """`ok`: the bytes are those that were written. `readable`: it has no digest, and its form is right. `unfinished`:
    left by a process that was killed; the command that wrote it continues. `damaged`: see `detail`."""
    detail: str = ""


@dataclass(frozen=True)
class FolderCheck:
    """What `carp check` found."""

    folder: Path
    files: list[FileCheck]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not any(file.verdict == "damaged" for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {"folder": str(self.folder), "ok": self.ok, "files": [asdict(file) for file in self.files]}

    def lines(self) -> list[str]:
        """One line per file, then a summary."""
        shown = [f"{file.verdict:10} {file.path}{f': {file.detail}' if file.detail else ''}" for file in self.files]
        damaged = sum(file.verdict == "damaged" for file in self.files)
        end = f"{damaged:,} of {len(self.files):,} files are damaged" if damaged else "nothing is damaged"
        return [*shown, f"{self.folder}: {len(self.files):,} files checked, {end}."]


def check_folder(folder: str | Path) -> FolderCheck:
    """Read every file that CARP wrote into a folder, all of it, and compare it with its digest.

    Files that CARP did not write are passed over.

    Args:
        folder: A run folder, a feature store, a search index, a checkpoint, an export (a file or a folder), or a
            folder that holds any of these.
    """
    root = Path(folder)
    if not root.exists():
        raise DataError(f"there is no file or folder {root}.")
    found = [
        FileCheck(str(path.relative_to(root)) if path != root else path.name, verdict, detail)
        for path, verdict, detail in _checks(root)
    ]
    if not found:
        raise DataError(
            f"{root} holds nothing that CARP wrote: give a run folder, a folder of `carp embed` or `carp index`, or "
            "what `carp export` wrote."
        )
    return FolderCheck(root, found)


_Found = tuple[Path, Verdict, str]


def _checks(path: Path) -> Iterator[_Found]:
    """Everything below a path, in the order of names."""
    if is_part(path):
        yield path, "unfinished", "left by a process that was stopped; the same command continues or removes it"
    elif path.is_file():
        yield from _file(path)
    elif path in list_checkpoints(path.parent) or _is_checkpoint(path):
        yield _judged(path, lambda: load_checkpoint(path))
    elif (path / "config.json").is_file() and any(
        export_format.is_carp_file(path) for export_format in FORMATS if not export_format.suffix
    ):
        yield from _timm_export(path)
    elif path.is_dir():
        own: set[str] = set()
        for is_kind, check in ((is_store, _store), (_has_index, _index), (is_run, _run)):
            if is_kind(path):
                checked = list(check(path))
                own |= {found.name for found, _, _ in checked}
                yield from checked
        for inside in sorted(path.iterdir()):
            if inside.name not in own and not inside.is_symlink():
                yield from _checks(inside)


def _judged(path: Path, check: Callable[[], object], sound: Verdict = "ok", detail: str = "") -> _Found:
    """The verdict of a function that raises what is wrong."""
    try:
        check()
    except Exception as error:  # a damaged file can fail in any way inside its reader
        text = " ".join(str(error).split()) or type(error).__name__
        return path, "damaged", text.removeprefix(f"{path} is damaged: ")
    return path, sound, detail


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and {"manifest.json", "tensors.safetensors"} <= {inside.name for inside in path.iterdir()}


def _has_index(path: Path) -> bool:
    return is_index(path) or ((path / INDEX).is_file() and not is_store(path))


def _store(folder: Path) -> Iterator[_Found]:
    manifest = folder / STORE
    try:
        store = read_manifest(folder)
    except DataError as error:
        yield manifest, "damaged", str(error)
        return
    sound: Verdict = "ok" if store.files else "readable"
    detail = "" if store.files else _NO_DIGEST
    yield manifest, sound, detail
    for name in store_files(store):
        yield _judged(folder / name, partial(store.check, name, everything=True), sound, detail)


def _index(folder: Path) -> Iterator[_Found]:
    manifest = folder / INDEX
    try:
        about = read_index_manifest(folder)
    except DataError as error:
        yield manifest, "damaged", str(error)
        return
    sound: Verdict = "ok" if about["files"] else "readable"
    detail = "" if about["files"] else _NO_DIGEST
    yield manifest, sound, detail
    yield _judged(folder / VECTORS, lambda: check_vectors(folder, about, everything=True), sound, detail)


def _run(folder: Path) -> Iterator[_Found]:
    yield _judged(folder / "config.yaml", lambda: open_run(folder), "readable")
    yield _judged(folder / "run.json", lambda: json.loads((folder / "run.json").read_text()), "readable")
    yield _judged(folder / "metrics.jsonl", lambda: _check_metrics(folder), "readable")


def _check_metrics(folder: Path) -> None:
    path, problems = folder / "metrics.jsonl", list[str]()
    counted = 0
    for checkpoint in reversed(list_checkpoints(folder / "checkpoints")):
        try:
            counted = int(load_checkpoint(checkpoint).state["metrics_length"])
            break
        except CheckpointError:
            continue
    if not path.exists() and counted:
        raise DataError("it is missing")
    if path.exists():
        read_metrics(path, problems.append)
        if path.stat().st_size < counted:
            problems.append(f"it has {path.stat().st_size:,} of the {counted:,} bytes that the checkpoint counted")
    if problems:
        raise DataError(problems[-1])


def _file(path: Path) -> Iterator[_Found]:
    """A file by its name and place; nothing for one that CARP did not write."""
    if path.suffix == ".json" and path.parent.name == "results":
        yield _judged(path, lambda: read_result(path), "readable")
    elif path.suffix == ".index" and path.parent.name == "index":
        yield _judged(path, lambda: check_index_file(path))
    elif path.name == "quarantine.jsonl":
        yield _judged(path, lambda: [json.loads(line) for line in path.read_text().splitlines()], "readable")
    elif path.name == "plots.png":
        yield _judged(path, lambda: _check_picture(path))
    else:
        export_format = next(
            (f for f in FORMATS if f.suffix == path.suffix and f.suffix and f.is_carp_file(path)), None
        )
        if export_format is None:
            if _is_broken_export(path):
                yield path, "damaged", "`carp export` wrote it, but it cannot be read. Export the encoder again"
            return
        if export_format.name == "safetensors":
            yield _tensors(path, json.loads(_about_in(path)))
        elif export_format.name == "torchvision":
            yield _judged(path, lambda: _check_zip(path))
        else:
            yield path, "readable", f"{export_format.name} files have no digest: export again if in doubt"


def _timm_export(folder: Path) -> Iterator[_Found]:
    about = json.loads((folder / "config.json").read_text())[MARK]
    yield folder / "config.json", "readable", ""
    yield _tensors(folder / "model.safetensors", about)


def _tensors(path: Path, about: dict[str, Any]) -> _Found:
    expected = about.get("tensors_sha256")

    def check() -> None:
        if tensors_hash(load_file(path)) != expected is not None:
            raise DataError("its tensors do not match their digest")

    return _judged(path, check, "ok" if expected else "readable", "" if expected else _NO_DIGEST)


def _about_in(path: Path) -> str:
    with safe_open(path, framework="pt") as file:
        return str(file.metadata()[MARK])


def _is_broken_export(path: Path) -> bool:
    """Whether a file that no reader takes for an export has CARP's words near its beginning or its end."""
    if path.suffix not in {export_format.suffix for export_format in FORMATS if export_format.suffix}:
        return False
    with path.open("rb") as file:
        head = file.read(_SEARCHED)
        file.seek(max(0, path.stat().st_size - _SEARCHED))
        return any(b"written_by" in part and b"CARP " in part for part in (head, file.read()))


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise DataError(f"{damaged} inside it does not match its checksum")


def _check_picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.verify()
