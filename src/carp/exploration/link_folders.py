"""Folders of links: one folder per cluster, with a symbolic link to every image. No image is copied or moved."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from carp.errors import DataError
from carp.files.atomic import replacing

_UNSAFE = re.compile(r"[^\w.-]+")
_LONGEST = 80


def check_files(places: Sequence[str]) -> None:
    """Raise unless every image is a file of its own, which a link can point to."""
    if strange := next((place for place in places if not Path(place).is_file()), None):
        raise DataError(
            f"{strange} is not a file, so no link can point to it. Leave out --folders, or give images in a folder or "
            "a list of paths."
        )


def write_link_folders(folder: Path, places: Sequence[str], groups: Sequence[str]) -> None:
    """Write a folder with a sub-folder per group; an older one is replaced.

    Args:
        folder: The folder to write.
        places: The files.
        groups: The group of every file, as the name of its sub-folder.
    """
    check_files(places)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as beside:
            beside.mkdir()
            for place, group in zip(places, groups, strict=True):
                inside = beside / safe_name(group)
                inside.mkdir(exist_ok=True)
                _link(inside, Path(os.path.abspath(place)))  # noqa: PTH100 - links in the path stay as they are
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror or error}. Give another --out.") from error


def safe_name(name: str) -> str:
    """A name that every file system accepts."""
    return _UNSAFE.sub("_", name).strip("._")[:_LONGEST] or "_"


def _link(inside: Path, target: Path) -> None:
    """Link under the file's own name, or with a number before it if that is taken."""
    link, number = inside / target.name, 2
    while os.path.lexists(link):
        link = inside / f"{number}-{target.name}"[-250:]
        number += 1
    link.symlink_to(target)
