"""Checks that a command can write its output, before the work starts rather than hours later.

Permission bits are not enough: they allow the superuser everything, even on a read-only file system. Therefore a
nameless temporary file is created where the output will be.
"""

import os
import tempfile
from pathlib import Path

from carp.errors import ConfigError


def check_output_folder(path: str | Path) -> None:
    """Raise unless a folder can be created, or written to, at this path."""
    folder = Path(path).expanduser()
    if _exists(folder, "--out") and not folder.is_dir():
        raise ConfigError(f"{folder} is a file. Give a folder with --out.")
    _check_place(folder, folder, "--out")


def check_output_file(path: str | Path, option: str = "--out") -> None:
    """Raise unless a file can be created, or replaced, at this path."""
    file = Path(path).expanduser()
    if _exists(file, option):
        if file.is_dir():
            raise ConfigError(f"{file} is a folder. Give a file with {option}.")
        if not os.access(file, os.W_OK):
            raise _refusal(file, "it is write-protected", option)
    _check_place(file, file.parent, option)


def nearest_existing(path: Path) -> Path:
    """Return the path itself if it exists, otherwise the nearest of its parents that does."""
    return next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())


def _check_place(path: Path, folder: Path, option: str) -> None:
    """Create and remove a file in the folder, or in its nearest existing parent."""
    try:
        place = nearest_existing(folder)
        if not place.is_dir():
            raise _refusal(path, f"{place} is a file, not a folder", option)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _refusal(path, error.strerror or str(error), option) from error


def _exists(path: Path, option: str) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise _refusal(path, error.strerror or str(error), option) from error


def _refusal(path: Path, reason: str, option: str) -> ConfigError:
    return ConfigError(f"cannot write {path}: {reason}. Give another path with {option}.")
