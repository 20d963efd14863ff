"""A text or CSV file that lists image files, with or without labels; either may be on a server."""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from carp.console.addresses import as_local, is_address, last_name, public
from carp.errors import DataError, nearest
from carp.images.decoding.decode import Stored, read_file
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.decoding.transient import retrying
from carp.images.index import Index, IndexedSource, find_index, pack, strings_arrays
from carp.images.labels import number_classes
from carp.images.remote.listed_images import beside, check_listed, open_list, read_image
from carp.images.remote.shard import ReaderFile, Shard, identity_of, reading, stamp_of
from carp.images.source import Found, Opening, as_path, silent

_AHEAD = 1 << 20  # bytes that are read at once
_PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
_LABEL_COLUMNS = ("label", "class", "category", "target", "cls")


class _Entry(NamedTuple):
    line: int
    path: str
    label: str | None


class ListSource(IndexedSource):
    """The image files that a list names, in its order; relative paths start at the folder of the list.

    The files are not looked up when the list is opened: a missing one is an image that cannot be read. A list on a
    server may name files on servers only, because its author is not the user of this machine.
    """

    kind = "list"
    example = "a list of paths (.txt, .csv, .tsv)"
    suffixes = frozenset({".txt", ".csv", ".tsv"})
    claim_order = 30
    label_remedy = "add a second column with the class of every image"
    _FROM_INDEX = frozenset({"paths", "labels"})

    def __init__(self, file: Shard, *, index: Path | None = None, progress: Found = silent) -> None:
        self.file, self.name = file, str(file)
        of = f"list:{identity_of(file)}"
        try:
            stamp = stamp_of(file)
            stored = find_index(index, of)
            current = stored is not None and stored.about["stamp"] == stamp
            build = partial(_build, file, of, stamp, progress)
            self._set(stored if stored is not None and current else retrying(build, file))
        except OSError as error:
            raise DataError(f"cannot read the list {file}: {error.strerror}. Check the path.") from error

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim an existing file or an address with one of the suffixes."""
        return super().claims(data) and (is_address(data) or as_path(data).is_file())

    @classmethod
    def open(cls, data: str, how: Opening) -> "ListSource":
        """Read the list."""
        file = open_list(data, how.cache_gb) if is_address(data) else as_path(data)
        return ListSource(file, index=how.index, progress=how.progress)

    def _set(self, index: Index) -> None:
        super()._set(index)
        self.labels = index.arrays["labels"] if self.classes else None
        self.paths = index.strings("paths")

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one file."""
        where = self._where(index)
        return read_file(where) if isinstance(where, Path) else read_image(where)

    def place(self, index: int) -> str:
        """Return the path of one file, or its address."""
        where = self._where(index)
        return str(where) if isinstance(where, Path) else public(where)

    def short_name(self, index: int) -> str:
        """Return the path in the list."""
        path = self.paths[index]
        return public(path) if is_address(path) else path

    def keep_index(self, folder: Path) -> None:
        """Store the index, unless the list has passwords or signatures: these are written nowhere."""
        if not self.index.about.get("secrets"):
            super().keep_index(folder)

    def _where(self, index: int) -> Path | str:
        """Return the path of one file, or its address."""
        path = self.paths[index]
        if is_address(path):
            return path
        return self.file.parent / as_local(path) if isinstance(self.file, Path) else beside(self.file, path)


def _build(file: Shard, of: str, stamp: list[int | str], progress: Found) -> Index:
    paths, labels, first, secrets = list[str](), list[str](), 0, False
    with _lines(file) as lines:
        for entry in _entries(file, lines):
            if "\0" in entry.path:
                raise DataError(
                    f"{file}, line {entry.line}: this is not a list of paths (it has a NUL byte). Give a text file "
                    "with one path per line."
                )
            if paths and (entry.label is None) == bool(labels):
                has, had = ("no label", "one") if entry.label is None else ("a label", "none")
                raise DataError(
                    f"{file}, line {entry.line}: '{entry.path}' has {has}, but line {first} has {had}. "
                    "Label all images or none."
                )
            check_listed(entry.path, f"{file}, line {entry.line}", remote=not isinstance(file, Path))
            first, secrets = (
                first or entry.line,
                secrets or (is_address(entry.path) and public(entry.path) != entry.path),
            )
            paths.append(entry.path)
            if entry.label is not None:
                labels.append(entry.label)
            if len(paths) % 10_000 == 0:
                progress(len(paths), 0)
    if not paths:
        raise DataError(f"the list {file} names no images: write one path per line.")
    numbers, classes = number_classes(labels)
    about = {"stamp": stamp, "classes": classes, "secrets": secrets}
    index = Index(of, about, {**strings_arrays("paths", pack(paths)), "labels": numbers})
    index.about["fingerprint"] = index.fingerprint("paths", "labels")
    return index


@contextmanager
def _lines(file: Shard) -> Iterator[io.TextIOWrapper]:
    with reading(file, ahead=_AHEAD) as reader:
        opened = io.BufferedReader(ReaderFile(reader), _AHEAD)
        yield io.TextIOWrapper(opened, "utf-8-sig", errors="surrogateescape", newline="")


def _entries(file: Shard, lines: Iterable[str]) -> Iterator[_Entry]:
    suffix = Path(str(file)).suffix.lower()
    if suffix in {".csv", ".tsv"}:
        return _from_table(file, lines, "\t" if suffix == ".tsv" else ",")
    return _from_text(file, lines)


def _from_text(file: Shard, lines: Iterable[str]) -> Iterator[_Entry]:
    """Yield one path per line, optionally with a label after a tab or a comma; a comma may also belong to the path."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        path, sign, label = text.rpartition("\t")
        if not sign:
            path, sign, label = text.rpartition(",")
            if not _is_image(path):
                path, sign, label = text, "", ""
        if sign and (not path.strip() or not label.strip()):
            raise DataError(f"{file}, line {number}: '{text}' must be a path, or a path, a tab or comma, and a label.")
        yield _Entry(number, path.strip(), label.strip() if sign else None)


def _from_table(file: Shard, lines: Iterable[str], delimiter: str) -> Iterator[_Entry]:
    """Columns by the names in the first line; path and label where the first line is an image already."""
    rows = csv.reader(lines, delimiter=delimiter)
    path_column, label_column = 0, None
    first = True
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if first:
                first = False
                if not _is_image(cells[0]) or cells[0].lower() in _PATH_COLUMNS:
                    path_column, label_column = _columns(file, rows.line_num, cells)
                    continue
                label_column = 1 if len(cells) > 1 else None
            needed = max(path_column, label_column or 0)
            label = cells[label_column] if label_column is not None and len(cells) > needed else ""
            if len(cells) <= needed or not cells[path_column] or (label_column is not None and not label):
                missing = "label" if len(cells) > path_column and cells[path_column] else "path"
                raise DataError(
                    f"{file}, line {rows.line_num}: the {missing} is missing in '{delimiter.join(row)}'. Add it."
                )
            yield _Entry(rows.line_num, cells[path_column], label or None)
    except csv.Error as error:
        raise DataError(f"{file}, line {rows.line_num}: {error}. Check that every quotation mark is closed.") from error


def _columns(file: Shard, line: int, names: list[str]) -> tuple[int, int | None]:
    """Return which columns hold paths and labels."""
    lower = [name.lower() for name in names]
    path = next((lower.index(name) for name in _PATH_COLUMNS if name in lower), None)
    if path is None:
        close = next((hint for name in lower if (hint := nearest(name, _PATH_COLUMNS))), "")
        raise DataError(
            f"{file}, line {line}: no column has paths, received the columns {', '.join(names)}.{close} "
            f"Name the column of paths '{_PATH_COLUMNS[0]}' (and that of labels '{_LABEL_COLUMNS[0]}'), or leave out "
            "the header."
        )
    return path, next((lower.index(name) for name in _LABEL_COLUMNS if name in lower), None)


def _is_image(path: str) -> bool:
    path = path.strip()
    return Path(last_name(path) if is_address(path) else path).suffix.lower() in SUFFIXES
