"""Images that a person has selected: as a CSV file, a list of paths, or a folder of links.

Text goes to the browser. Files are written into one folder, which was chosen when the server started, under names that
do not exist yet.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from carp.errors import ConfigError, DataError
from carp.exploration.link_folders import safe_name, write_link_folders
from carp.files.atomic import write_atomic

CSV, LIST, LINKS = "csv", "list", "links"
SUFFIXES = {CSV: ".csv", LIST: ".txt", LINKS: ""}
_MOST_FILES = 10_000  # with the same name


def as_text(kind: str, places: Sequence[str], labels: Sequence[str]) -> bytes:
    """Images as `image,label` rows, which `carp label` reads, or as a list of paths, one per line."""
    if kind == LIST:
        if any("\n" in place or "\r" in place for place in places):
            raise DataError("a name contains a line break, so a list of paths cannot hold it. Save the images as CSV.")
        return "".join(f"{place}\n" for place in places).encode("utf-8", "surrogateescape")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["image", "label"])
    writer.writerows(zip(places, labels, strict=True))
    return file.getvalue().encode("utf-8", "backslashreplace")


def save(folder: Path, kind: str, places: Sequence[str], labels: Sequence[str], name: str) -> Path:
    """Write a selection into a folder under a new name, and return its path."""
    if kind not in SUFFIXES:
        raise ConfigError(f"a selection is saved as {', '.join(SUFFIXES)}, received '{kind}'.")
    path = _new(folder, safe_name(name) if name else "selection", SUFFIXES[kind])
    if kind == LINKS:
        write_link_folders(path, places, [label or "images" for label in labels])
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, as_text(kind, places, labels))
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another --out.") from error
    return path


def _new(folder: Path, name: str, suffix: str) -> Path:
    for number in range(1, _MOST_FILES):
        path = folder / f"{name}{'' if number == 1 else f'-{number}'}{suffix}"
        if not path.exists() and not path.is_symlink():
            return path
    raise DataError(f"{folder} has {_MOST_FILES:,} selections with the name {name}. Give another name.")
