"""A folder of images, flat or nested, of any size."""

import heapq
import os
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.decoding.decode import Stored, read_file
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.decoding.transient import is_transient, retrying
from carp.images.index import Found, Index, IndexedSource, Strings, Texts, find_index, pack, silent, strings_arrays
from carp.images.sources.passed_over import OTHER_KIND, kinds_of, skipped_notes, unlistable_notes

_LOWER = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8).astype(np.uint64)
# A million files are listed in a second, but asked for their sizes in five: only so many are asked, evenly spread.
_SIZES_ASKED = 10_000
_FRESH = 2_000_000_000  # nanoseconds: a folder that changed so shortly before may change again with the same time
_TOLD_EVERY = 10_000
_UNKNOWN = -1


class Paths(Texts):
    """Paths of all images relative to the folder: folder by folder, both in the order of their names."""

    def __init__(self, folders: Strings, names: Strings, folder_of: NDArray[np.int32]) -> None:
        self._folders, self._names, self._folder_of = folders, names, folder_of

    def __len__(self) -> int:
        return len(self._names)

    def text(self, place: int) -> str:
        """The path at a place, counted from 0."""
        name, folder = self._names.text(place), self._folders.text(int(self._folder_of[place]))
        return f"{folder}/{name}" if folder else name

    def raw(self, places: NDArray[np.int64]) -> list[bytes]:
        """Many paths at once, as bytes."""
        folders = self._folders.raw(self._folder_of[places].astype(np.int64))
        return [b"%b/%b" % pair if pair[0] else pair[1] for pair in zip(folders, self._names.raw(places), strict=True)]


class FolderSource(IndexedSource):
    """All images below a folder.

    When every image lies in one of several sub-folders, the names of these are the classes. Hidden files and folders
    are passed over, and so are links that lead nowhere; other links are followed, but into no folder twice.

    Sub-folders that may not be listed are passed over, too. `notes` names everything that was passed over by its kind.

    The fingerprint covers all paths, and the sizes of up to 10,000 images: of all, unless there are more.
    """

    _FROM_INDEX = frozenset({"paths", "labels"})

    def __init__(self, root: Path, *, index: Path | None = None, progress: Found = silent) -> None:
        self.root, self.name = root, str(root)
        of = f"folder:{os.path.abspath(root)}"  # noqa: PTH100 - links in the path stay as they are
        stored = find_index(index, of)
        self._set(stored if stored is not None and _is_current(root, stored) else _build(root, of, progress))

    def _set(self, index: Index) -> None:
        super()._set(index)
        self.paths = _paths(index)

    @cached_property
    def labels(self) -> NDArray[np.int64] | None:
        """A class index per image; None without classes."""
        if not self.classes:
            return None
        per_folder: NDArray[np.int64] = self.index.arrays["label"]
        return per_folder[self.index.arrays["folder_of"]]

    @property
    def skipped(self) -> dict[str, int]:
        """How many files that are no images there are, by suffix."""
        return dict(self.index.about.get("skipped", {}))

    @property
    def notes(self) -> list[str]:
        """Lines about what was passed over."""
        about = self.index.about
        return [*unlistable_notes(self.name, about.get("unlistable", [])), *skipped_notes(self.skipped)]

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, index: int) -> Stored:
        """The bytes of one file."""
        return read_file(self.root / self.paths[index])

    def place(self, index: int) -> str:
        """The path of one file."""
        return str(self.root / self.paths[index])


def _paths(index: Index) -> Paths:
    return Paths(index.strings("folders"), index.strings("names"), index.arrays["folder_of"])


class _Listed(NamedTuple):
    """A folder: when it changed, how many files it holds, their names as `pack` writes them, what else is there."""

    changed: int
    files: int
    names: bytes
    others: int  # links that lead nowhere, pipes, sockets, devices


def _build(root: Path, of: str, progress: Found) -> Index:
    found, unlistable = _scan(root, progress)
    folders = sorted(found)
    counts, names, skipped = _only_images([found[folder] for folder in folders])
    if others := sum(listed.others for listed in found.values()):
        skipped[OTHER_KIND] = others
    if not counts.sum():
        notes = [*unlistable_notes(str(root), unlistable), *skipped_notes(skipped)]
        passed_over = "".join(f"{note[0].upper()}{note[1:]}. " for note in notes)
        raise DataError(
            f"there are no images below {root} (looked for {', '.join(sorted(SUFFIXES))}). {passed_over}"
            "Give the folder that holds the images."
        )
    labels, classes = _labels_of(folders, counts.tolist())
    arrays = {
        **strings_arrays("folders", pack(folders)),
        **strings_arrays("names", names),
        "folder_of": np.repeat(np.arange(len(folders), dtype=np.int32), counts),
        "changed": np.array([found[folder].changed for folder in folders], dtype=np.int64),
        "label": labels,
    }
    about = {"classes": classes, "suffixes": sorted(SUFFIXES), "skipped": skipped, "unlistable": unlistable}
    index = Index(of, about, arrays)
    arrays["sizes"] = _sizes(root, _paths(index))
    index.about["fingerprint"] = index.fingerprint("folders", "names", "folder_of", "sizes")
    return index


def _scan(root: Path, progress: Found) -> tuple[dict[str, _Listed], list[str]]:
    """Every folder by its path relative to the root, and the paths of those that may not be listed.

    Links come after everything else and in the order of their names, so that the outcome does not depend on the order
    in which the file system lists a folder.
    """
    found, unlistable = dict[str, _Listed](), list[str]()
    folders, links, seen = [""], list[str](), set[tuple[int, int]]()
    started, total, told = time.time_ns(), 0, 0
    while folders or links:
        folder = folders.pop() if folders else heapq.heappop(links)
        path = f"{root}/{folder}"
        try:
            state = retrying(partial(os.stat, path), path)  # before it is listed: a later change must show
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            files, inner, linked, others = retrying(partial(_list, path), path)
        except PermissionError as error:
            if not folder:
                raise DataError(f"cannot list the folder {root}: {error.strerror}.") from error
            unlistable.append(folder)
            continue
        except OSError as error:
            raise DataError(f"cannot list the folder {root / folder}: {error.strerror}.") from error
        prefix = f"{folder}/" if folder else ""
        folders += [prefix + name for name in inner]
        for name in linked:
            heapq.heappush(links, prefix + name)
        changed = state.st_mtime_ns if state.st_mtime_ns < started - _FRESH else _UNKNOWN
        files.sort()
        found[folder] = _Listed(changed, len(files), pack(files), others)
        total += len(files)
        if total - told >= _TOLD_EVERY:
            told = total
            progress(total, 0)
    return found, sorted(unlistable)


def _list(folder: str) -> tuple[list[str], list[str], list[str], int]:
    """Names of the files, the folders, and the links to folders in a folder; how many visible others there are."""
    others, folders, links = list[os.DirEntry[str]](), list[str](), list[str]()
    try:
        with os.scandir(folder) as entries:  # this line is most of the time of a large folder
            files = [entry.name for entry in entries if entry.is_file() or others.append(entry)]  # type: ignore[func-returns-value]
    except OSError as error:  # a link to itself, which cannot be asked; or the folder cannot be listed, raised here
        if is_transient(error):
            raise
        others.clear()
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if _holds(entry.is_file) or others.append(entry)]  # type: ignore[func-returns-value]
    visible = [entry for entry in others if not entry.name.startswith(".")]
    for entry in visible:
        if _holds(entry.is_dir):
            (links if entry.is_symlink() else folders).append(entry.name)
    return files, folders, links, len(visible) - len(folders) - len(links)


def _holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError as error:
        if is_transient(error):  # or a file would be missing for no fault of its own
            raise
        return False


def _only_images(listed: list[_Listed]) -> tuple[NDArray[np.int64], bytes, dict[str, int]]:
    """How many images every folder holds and their names: visible, with one of the suffixes in either case.

    Also how many visible files there are of every other kind.
    """
    packed = b"".join(folder.names for folder in listed)
    blob = np.frombuffer(packed, dtype=np.uint8)
    ends = np.flatnonzero(blob == 0)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    code = np.zeros(len(ends), dtype=np.uint64)  # the last five characters as a number; a short name brings a NUL
    for back in range(1, 6):
        code |= _LOWER[blob[ends - back]] << np.uint64(8 * (back - 1))
    image = np.isin(code, _codes(5)) | np.isin(code & np.uint64(0xFFFFFFFF), _codes(4))
    visible = blob[starts] != ord(".")
    skipped = kinds_of(blob, starts, ends, visible & ~image)
    image &= visible
    folder_of = np.repeat(np.arange(len(listed)), [folder.files for folder in listed])
    counts = np.bincount(folder_of[image], minlength=len(listed))
    return counts, packed if image.all() else blob[np.repeat(image, ends - starts + 1)].tobytes(), skipped


def _codes(length: int) -> NDArray[np.uint64]:
    """The suffixes of a length as numbers."""
    return np.array([int.from_bytes(suffix.encode(), "big") for suffix in SUFFIXES if len(suffix) == length], np.uint64)


def _labels_of(folders: list[str], counts: list[int]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A class index per folder and the names of the classes; none if an image lies outside of all sub-folders."""
    tops = [folder.partition("/")[0] for folder in folders]
    names = sorted({top for top, count in zip(tops, counts, strict=True) if count})
    if "" in names or len(names) < 2:
        return np.zeros(len(folders), dtype=np.int64), ()
    number = {name: i for i, name in enumerate(names)}
    return np.array([number.get(top, 0) for top in tops], dtype=np.int64), tuple(names)


def _sizes(root: Path, paths: Paths) -> NDArray[np.int64]:
    """Sizes in bytes of evenly spread images, of all if there are few enough."""
    asked = np.unique(np.linspace(0, len(paths) - 1, _SIZES_ASKED).astype(np.int64))
    prefix = os.fsencode(root) + b"/"
    return np.fromiter((_size(prefix + path) for path in paths.raw(asked)), dtype=np.int64, count=len(asked))


def _size(path: bytes) -> int:
    try:
        return retrying(partial(os.stat, path), os.fsdecode(path)).st_size
    except OSError:
        return _UNKNOWN


def _is_current(root: Path, index: Index) -> bool:
    """Whether the folders and the sizes are those that the index was built from, by the same rule.

    A folder that could not be listed may be listable now without any change of time, so it is looked at again.
    """
    if index.about.get("suffixes") != sorted(SUFFIXES) or index.about.get("unlistable"):
        return False
    changed = index.arrays["changed"]
    for folder, before in zip(index.strings("folders"), changed.tolist(), strict=True):
        try:
            if before == _UNKNOWN or (root / folder).stat().st_mtime_ns != before:
                return False
        except OSError:
            return False
    return np.array_equal(_sizes(root, _paths(index)), index.arrays["sizes"])
