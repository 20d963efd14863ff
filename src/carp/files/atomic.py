"""Files that are written whole or not at all, what a killed process leaves behind, and digests.

Everything that CARP writes under a final name is first written beside it under a temporary name, synced and then
renamed. A process that is killed on the way leaves a file or folder whose name begins with `.unfinished-`. The next
writer of the same path replaces it, and no command takes it for a user's file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished-"
_OLD = f"{UNFINISHED}old-"
_LONGEST_NAME = 255  # bytes, on nearly every file system
_CHUNK = 2**22  # bytes with a digest of their own
_QUICK = 16  # chunks of a file that are verified when it is opened


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Give the name to write a file or folder under; when the block ends well, it takes the place of `path`.

    If the block raises, what it wrote is removed and `path` stays as it was. Devices and pipes cannot be replaced and
    are written directly; a symbolic link stays, and its target is replaced.

    Args:
        path: The final name. Its folder must exist.
        shared: Several processes may write this path at the same time; each gets its own temporary name.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    beside = _beside(path, f"{UNFINISHED}{os.getpid()}-" if shared else UNFINISHED)
    remove(beside)
    old = _beside(path, _OLD)
    if old.exists() and not path.exists():  # a writer was killed between two renames
        old.replace(path)
    try:
        yield beside
        _sync_all(beside)
        _take_place(beside, path)
    except BaseException:
        remove(beside)
        raise
    sync(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file whole or not at all; text is written as UTF-8."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def is_unfinished(path: Path) -> bool:
    """Whether a path is what a killed writer left behind."""
    return path.name.startswith(UNFINISHED)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left in a folder, except what a running process is writing with `shared`."""
    with suppress(OSError):  # a folder that cannot be changed stays as it is
        for path in list(folder.iterdir()):
            if is_unfinished(path) and not _is_being_written(path):
                remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(content: Mapping[str, Any]) -> str:
    """The SHA-256 of an object as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digests_of(path: Path) -> dict[str, Any]:
    """The size of a file and the SHA-256 of every chunk of it, for a manifest."""
    with path.open("rb") as file:
        chunks = [hashlib.sha256(chunk).hexdigest() for chunk in iter(lambda: file.read(_CHUNK), b"")]
        return {"bytes": file.tell(), "chunk": _CHUNK, "sha256": chunks}


def damage_of(path: Path, expected: Mapping[str, Any], *, everything: bool = False) -> str | None:
    """How a file differs from what `digests_of` found when it was written; None if it does not.

    Args:
        path: The file.
        expected: What `digests_of` returned.
        everything: Read all of a large file. Otherwise of more than 16 chunks (64 MB) its size is compared, and 16
            chunks are read: the first, the last, and others evenly between.
    """
    size, step, digests = expected["bytes"], expected["chunk"], expected["sha256"]
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                return f"it has {found:,} bytes, not {size:,}"
            for number in range(len(digests)) if everything else _spread(len(digests), _QUICK):
                file.seek(number * step)
                if hashlib.sha256(file.read(step)).hexdigest() != digests[number]:
                    return f"bytes {number * step:,} to {min((number + 1) * step, size):,} do not match their digest"
    except OSError as error:
        return str(error.strerror or error).lower()
    return None


def _spread(count: int, wanted: int) -> list[int]:
    """Numbers below `count`, the first and the last among them, evenly spread."""
    if count <= wanted:
        return list(range(count))
    return [i * (count - 1) // (wanted - 1) for i in range(wanted)]


def _beside(path: Path, prefix: str) -> Path:
    name = f"{prefix}{path.name}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f"{prefix}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}{path.suffix[:16]}"
    return path.with_name(name)


def _take_place(beside: Path, path: Path) -> None:
    """Rename. A folder that is replaced is first renamed itself, as one cannot be removed in a single step."""
    old = _beside(path, _OLD)
    if not path.is_dir():
        beside.replace(path)
        if path.is_dir():
            remove(old)  # of a process that was killed between its two renames
        return
    remove(old)
    path.replace(old)
    try:
        beside.replace(path)
    except BaseException:
        old.replace(path)
        raise
    remove(old)


def _sync_all(path: Path) -> None:
    if path.is_dir():
        for inside in sorted(path.iterdir()):
            _sync_all(inside)
    sync(path)


def _is_being_written(path: Path) -> bool:
    """Whether the process that a temporary name carries is another one that is running."""
    number = path.name.removeprefix(UNFINISHED).partition("-")[0]
    if not number.isdecimal() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
