"""The relevant images of every query: the ground truth of revisited Oxford and Paris, a relevance file, or labels.

Shapes: Q queries.
"""

import csv
import json
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.feature_arrays import Labels
from carp.evaluation.ranked.ranking import Indices, Judged
from carp.files.regular import read_regular
from carp.images.sources.subset import NameIndex
from carp.restricted import read_plain_pickle

_KEYS = ("gnd", "imlist", "qimlist")
_JUDGEMENTS = ("easy", "hard", "junk")
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class GroundTruth:
    """Queries, images of the database, and which of these are easy, hard or junk for every query."""

    queries: tuple[str, ...]
    database: tuple[str, ...]
    boxes: NDArray[np.float64] | None  # [Q, 4]: left, top, right, bottom in pixels; None without boxes
    easy: tuple[Indices, ...]
    hard: tuple[Indices, ...]
    junk: tuple[Indices, ...]

    def levels(self) -> dict[str, list[Judged]]:
        """Return what is relevant and what is ignored for every query, by level: easy, medium and hard."""
        rows = list(zip(self.easy, self.hard, self.junk, strict=True))
        return {
            "easy": [Judged(easy, np.concatenate([junk, hard])) for easy, hard, junk in rows],
            "medium": [Judged(np.concatenate([easy, hard]), junk) for easy, hard, junk in rows],
            "hard": [Judged(hard, np.concatenate([junk, easy])) for easy, hard, junk in rows],
        }


def read_ground_truth(path: Path) -> GroundTruth:
    """Read a published pickle (`gnd_roxford5k.pkl`), with a reader that runs no code, or the same as JSON."""
    raw = _bytes(path)
    if path.suffix.lower() == ".json":
        return _checked(_json(raw, path), str(path))
    return _checked(read_plain_pickle(raw, str(path)), str(path))


def _json(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}.") from error


def _checked(read: Any, place: str) -> GroundTruth:
    if not isinstance(read, dict) or not all(key in read for key in _KEYS):
        received = ", ".join(str(key)[:40] for key in list(read)[:6]) if isinstance(read, dict) else type(read).__name__
        raise DataError(f"{place} is not a ground truth: it must have {', '.join(_KEYS)}, received {received}.")
    database, queries = (_names(read[key], key, place) for key in ("imlist", "qimlist"))
    gnd = read["gnd"]
    if not isinstance(gnd, list) or len(gnd) != len(queries):
        count = f"{len(gnd)} entries" if isinstance(gnd, list) else type(gnd).__name__
        raise DataError(f"{place}: gnd must have an entry for each of the {len(queries)} queries, received {count}.")
    judged: dict[str, list[Indices]] = {kind: [] for kind in _JUDGEMENTS}
    boxes = []
    for query, entry in enumerate(gnd):
        where = f"{place}, query {query} ({queries[query]})"
        if not isinstance(entry, dict):
            raise DataError(f"{where}: an entry of gnd must be a dictionary, received {type(entry).__name__}.")
        for kind in _JUDGEMENTS:
            judged[kind].append(_indices(entry.get(kind), kind, len(database), where))
        _check_apart([judged[kind][-1] for kind in _JUDGEMENTS], where)
        if "bbx" in entry:
            boxes.append(_box(entry["bbx"], where))
    if boxes and len(boxes) != len(queries):
        raise DataError(f"{place}: {len(boxes)} of the {len(queries)} queries have a box (bbx). Give all or none.")
    easy, hard, junk = (tuple(judged[kind]) for kind in _JUDGEMENTS)
    return GroundTruth(queries, database, np.array(boxes) if boxes else None, easy, hard, junk)


def _names(read: Any, key: str, place: str) -> tuple[str, ...]:
    if not isinstance(read, list) or not read or not all(isinstance(name, str) and name for name in read):
        raise DataError(f"{place}: {key} must be a list of names of images.")
    names = tuple(read)
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise DataError(f"{place}: {key} names '{twice[:100]}' more than once.")
    return names


def _indices(read: Any, kind: str, num_images: int, where: str) -> Indices:
    if not isinstance(read, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in read):
        what = "nothing" if read is None else type(read).__name__ if not isinstance(read, list) else "something else"
        raise DataError(f"{where}: '{kind}' must be a list of numbers of images, received {what}.")
    wrong = next((i for i in read if not 0 <= i < num_images), None)
    if wrong is not None:
        raise DataError(f"{where}: '{kind}' names image {wrong}, but imlist has {num_images:,}, counted from 0.")
    if len(set(read)) < len(read):
        raise DataError(f"{where}: '{kind}' names an image more than once.")
    return np.array(read, dtype=np.int64)


def _check_apart(kinds: Sequence[Indices], where: str) -> None:
    both = np.concatenate(kinds)
    if len(np.unique(both)) < len(both):
        raise DataError(f"{where}: an image is in more than one of {', '.join(_JUDGEMENTS)}.")


def _box(read: Any, where: str) -> list[float]:
    if (
        not isinstance(read, list)
        or len(read) != 4
        or not all(isinstance(x, int | float) and not isinstance(x, bool) and np.isfinite(x) for x in read)
        or not (read[0] < read[2] and read[1] < read[3])
    ):
        raise DataError(f"{where}: bbx must be left, top, right and bottom in pixels, received {reprlib.repr(read)}.")
    return [float(x) for x in read]


class SameClass(Sequence[Judged]):
    """The images of the query's class are relevant; listed per query, because all lists would be too large."""

    def __init__(self, query_labels: Labels, database_labels: Labels, *, leave_self_out: bool = False) -> None:
        """With `leave_self_out`, query i is image i of the database, which is then ignored."""
        if leave_self_out and len(query_labels) != len(database_labels):
            raise DataError(
                f"queries can be left out of the database when both are the same images, received "
                f"{len(query_labels)} and {len(database_labels)}."
            )
        self._labels, self._leave_self_out = query_labels, leave_self_out
        self._members = {int(c): np.flatnonzero(database_labels == c) for c in np.unique(database_labels)}

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, query: Any) -> Any:
        """Return what is relevant and what is ignored for one query."""
        members = self._members.get(int(self._labels[query]), _NONE)
        if not self._leave_self_out:
            return Judged(members, _NONE)
        return Judged(members[members != query], np.array([query], dtype=np.int64))


def read_relevance(
    path: Path, query_names: Sequence[str], database_names: Sequence[str], *, leave_self_out: bool = False
) -> list[Judged]:
    """Read from a file what is relevant and what is ignored for every query.

    Args:
        path: JSON, `{"query": ["relevant", …]}` or `{"query": {"relevant": […], "junk": […]}}`; or CSV with one
            line per pair: query, image and optionally `relevant` or `junk`.
        query_names: Names of all queries; a query that the file does not name has no relevant images.
        database_names: Names of all images of the database.
        leave_self_out: Query i is image i of the database, which is then ignored.
    """
    found = _relevance_json(path) if path.suffix.lower() == ".json" else _relevance_csv(path)
    queries, database = NameIndex(query_names, where="the queries"), NameIndex(database_names, where="the database")
    own = [np.array([i]) if leave_self_out else _NONE for i in range(len(query_names))]
    judged = [Judged(_NONE, itself) for itself in own]
    places = queries.find(found, named_by=str(path))
    for place, (name, (relevant, junk)) in zip(places.tolist(), found.items(), strict=True):
        before = judged[place]  # a query may occur under several names
        positives, ignored = (database.find(names, named_by=str(path)) for names in (relevant, junk))
        positives = np.setdiff1d(np.union1d(before.positives, positives), own[place])
        ignored = np.union1d(before.junk, ignored)
        if len(both := np.intersect1d(positives, ignored)):
            raise DataError(f"{path}: for the query '{name}', '{database_names[both[0]]}' is both relevant and junk.")
        judged[place] = Judged(positives, ignored)
    return judged


Named = dict[str, tuple[list[str], list[str]]]  # relevant and junk by query


def _relevance_json(path: Path) -> Named:
    read = _json(_bytes(path), path)
    if not isinstance(read, dict):
        raise DataError(f"{path} must be an object of queries, received {type(read).__name__}.")
    found: Named = {}
    for query, names in read.items():
        both = names if isinstance(names, dict) else {"relevant": names}
        lists = (both.get("relevant", []), both.get("junk", []))
        if set(both) - {"relevant", "junk"} or not all(
            isinstance(part, list) and all(isinstance(name, str) for name in part) for part in lists
        ):
            raise DataError(
                f"{path}: the query '{query}' must have a list of names, or 'relevant' and 'junk', each with a list."
            )
        found[query] = lists
    return found


def _relevance_csv(path: Path) -> Named:
    try:
        text = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a relevance file: it is not text. Give CSV or JSON.") from error
    found: Named = {}
    for number, row in enumerate(_rows(text, path), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells[0].lower() == "query"):
            continue
        kind = cells[2].lower() if len(cells) == 3 and cells[2] else "relevant"
        if not 2 <= len(cells) <= 3 or not all(cells[:2]) or kind not in {"relevant", "junk"}:
            raise DataError(
                f"{path}, line {number}: '{','.join(row)}' must be a query, an image, and 'relevant' or 'junk'."
            )
        found.setdefault(cells[0], ([], []))[kind == "junk"].append(cells[1])
    return found


def _rows(text: str, path: Path) -> Iterator[list[str]]:
    rows = csv.reader(text.splitlines())
    try:
        yield from rows
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}. Check that every quotation mark is closed.") from error


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
