"""Atomic writes of files and folders, and what a killed process leaves behind.

Everything that CARP writes under a final name is first written next to it under a temporary name, synced and then
renamed. Every process has temporary names of its own, so that two that write the same path do not disturb each other;
the last one to finish takes effect. A process that is killed leaves a file or folder whose name begins with
`.unfinished-`. The next process that writes into the folder removes it, and no command mistakes it for a user's file.
"""

import hashlib
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".unfinished-"
_OLD = f"{UNFINISHED}old-"
_TEMPORARY = re.compile(rf"{re.escape(UNFINISHED)}\d+\.[0-9a-f]{{6}}(\.\d+)?-")
_LONGEST_NAME = 255  # bytes, on nearly every file system
_ABANDONED = 86400.0  # seconds after which the temporary file of another machine counts as a leftover
_swept: set[Path] = set()  # folders in which this process has looked for leftovers
_active: set[Path] = set()  # temporary names that this process is writing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name for a file or folder; when the block succeeds, it replaces `path`.

    If the block raises, what it wrote is removed and `path` stays as it was. Devices and pipes cannot be replaced and
    are written directly; a symbolic link stays, and its target is replaced. The folder of `path` must exist.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    _sweep(path.parent)
    beside = _beside(path, f"{UNFINISHED}{_writer()}-")
    for left in (beside, _beside(path, UNFINISHED)):  # the second is a leftover of earlier versions
        remove(left)
    old = _beside(path, _OLD)
    if old.exists() and not path.exists():  # a writer was killed between two renames
        old.replace(path)
    _active.add(beside.absolute())
    try:
        yield beside
        _sync_all(beside)
        _take_place(beside, path)
    except BaseException:
        remove(beside)
        raise
    finally:
        _active.discard(beside.absolute())
    sync(path.parent)


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder for temporary files. If the process is killed, the next one that writes here removes it."""
    _swept.discard(parent.absolute())
    _sweep(parent)
    folder = (parent / f"{UNFINISHED}{_writer()}-{name}").absolute()
    _active.add(folder)
    try:
        folder.mkdir()
        yield folder
    finally:
        remove(folder)
        _active.discard(folder)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file atomically; text is written as UTF-8."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def is_unfinished(path: Path) -> bool:
    """Return whether a path is a leftover of a killed writer."""
    return path.name.startswith(UNFINISHED)


def remove_unfinished(folder: Path) -> None:
    """Remove the leftovers of killed writers from a folder, except those that a running process is writing."""
    with suppress(OSError):  # a folder that cannot be changed stays as it is
        for path in list(folder.iterdir()):
            if is_unfinished(path) and not _is_being_written(path):
                remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, prefix: str) -> Path:
    name = f"{prefix}{path.name}"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f"{prefix}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}{path.suffix[:16]}"
    return path.with_name(name)


def _take_place(beside: Path, path: Path) -> None:
    """Rename. A folder that is replaced is first renamed, because it cannot be removed in a single step."""
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


def _sweep(folder: Path) -> None:
    """Remove leftovers from a folder when this process first writes there; listing it for every file would be slow.

    Only names that `replacing` creates are removed, because the folder may be a user's.
    """
    place = folder.absolute()
    if place in _swept:
        return
    _swept.add(place)
    with suppress(OSError):
        for name in os.listdir(place):  # noqa: PTH208 - a Path per name is slow
            if _TEMPORARY.match(name) and not _is_being_written(place / name):
                remove(place / name)


def _writer() -> str:
    """Return the writer for a temporary name: process, machine and, outside the main thread, thread."""
    thread = threading.current_thread()
    number = "" if thread is threading.main_thread() else f".{threading.get_native_id()}"
    return f"{os.getpid()}.{_machine()}{number}"


def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _is_being_written(path: Path) -> bool:
    """Return whether the writer in a temporary name is still running; earlier versions left out the machine."""
    number, *rest = path.name.removeprefix(UNFINISHED).partition("-")[0].split(".")
    if not number.isdecimal():
        return False
    if rest and rest[0] != _machine():
        with suppress(OSError):
            return time.time() - path.stat().st_mtime < _ABANDONED
        return False
    return path.absolute() in _active if int(number) == os.getpid() else _is_running(int(number))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
