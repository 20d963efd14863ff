"""Writes a list of the files to remove if one image of every group is kept. Nothing is deleted."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from carp.errors import ConfigError, DataError
from carp.files.atomic import write_atomic
from carp.similarity.copies_found import CopiesFound, Group, Member

SUFFIXES = (".txt", ".nul", ".csv")


def check_remove_list(path: Path) -> None:
    """Reject unsupported formats before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--remove-list must be a .txt file (one path per line), .nul (paths separated by NUL, for xargs -0) or "
            f".csv, received {path}."
        )


def write_remove_list(path: Path, found: CopiesFound) -> int:
    """Write the list, the most certain groups first; return the number of files."""
    check_remove_list(path)
    rows = list(_rows(found))
    files = [str(Path(member.place).absolute()) for _, _, member in rows]
    if path.suffix.lower() == ".csv":
        text = _csv(rows, files)
    elif path.suffix.lower() == ".nul":
        text = "".join(f"{file}\0" for file in files)
    else:
        if strange := next((file for file in files if "\n" in file or "\r" in file), None):
            raise DataError(f"the file name {strange!r} contains a line break. Write the list as .nul or .csv.")
        text = "".join(f"{file}\n" for file in files)
    write_atomic(path, text.encode("utf-8", "surrogateescape"))
    return len(files)


def _rows(found: CopiesFound) -> Iterator[tuple[int, Group, Member]]:
    for number, group in enumerate(found.groups, start=1):
        for member in group.members[1:]:
            if not Path(member.place).is_file():
                raise DataError(
                    f"{member.place} is not a file, so it cannot be listed for removal. Give images in a folder or a "
                    "list of paths; duplicates.json names all copies."
                )
            yield number, group, member


def _csv(rows: list[tuple[int, Group, Member]], files: list[str]) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["remove", "keep", "group", "agreement", "similarity", "identical"])
    for (number, group, member), file in zip(rows, files, strict=True):
        keep = str(Path(group.members[0].place).absolute())
        values = (f"{group.agreement:.4f}", f"{member.similarity:.4f}", str(member.identical).lower())
        table.writerow([file, keep, number, *values])
    return text.getvalue()
