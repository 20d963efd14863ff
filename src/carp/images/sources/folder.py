"""A folder of images, flat or nested, of any size."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.decoding.decode import Stored, read_file
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.decoding.transient import retrying
from carp.images.index import Index, IndexedSource, Strings, Texts, find_index, pack, strings_arrays
from carp.images.source import Found, Opening, as_path, is_text, lazy, silent
from carp.images.sources.folder_scan import (
    OTHER_KIND,
    UNKNOWN,
    only_images,
    scan_folders,
    skipped_notes,
    unlistable_notes,
)

_SIZES_SAMPLED = 10_000  # listing a million files takes one second, and reading their sizes five


class Paths(Texts):
    """Paths of all images relative to the folder: folder by folder, both in the order of their names."""

    def __init__(self, folders: Strings, names: Strings, folder_of: NDArray[np.int32]) -> None:
        self._folders, self._names, self._folder_of = folders, names, folder_of

    def __len__(self) -> int:
        return len(self._names)

    def text(self, place: int) -> str:
        """Return the path at a place, counted from 0."""
        name, folder = self._names.text(place), self._folders.text(int(self._folder_of[place]))
        return f"{folder}/{name}" if folder else name

    def raw(self, places: NDArray[np.int64]) -> list[bytes]:
        """Return many paths at once, as bytes."""
        folders = self._folders.raw(self._folder_of[places].astype(np.int64))
        return [b"%b/%b" % pair if pair[0] else pair[1] for pair in zip(folders, self._names.raw(places), strict=True)]


class FolderSource(IndexedSource):
    """All images below a folder.

    When every image lies in a sub-folder and there are at least two of these, their names are the classes. Hidden files
    and folders, broken links, and sub-folders without permission to list are skipped; `notes` counts the skipped files,
    except hidden ones. Links are followed, but no folder is visited twice.

    The fingerprint covers all paths, and the sizes of at most 10,000 images.
    """

    kind = "folder"
    example = "a folder of images"
    claim_order = 90  # it claims every folder, so other kinds are asked first
    label_remedy = "put its images into one sub-folder per class, at least two"
    _FROM_INDEX = frozenset({"paths", "labels"})

    def __init__(self, root: Path, *, index: Path | None = None, progress: Found = silent) -> None:
        self.root, self.name = root, str(root)
        of = f"folder:{os.path.abspath(root)}"  # noqa: PTH100 - links in the path stay as they are
        stored = find_index(index, of)
        self._set(stored if stored is not None and _is_current(root, stored) else _build(root, of, progress))

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim any folder."""
        return is_text(data) and as_path(data).is_dir()

    @classmethod
    def open(cls, data: str, how: Opening) -> "FolderSource":
        """List the folder, unless its stored index is current."""
        root = as_path(data)
        if not root.is_dir():
            raise DataError(f"there is no folder {data}. Give a folder of images.")
        return FolderSource(root, index=how.index, progress=how.progress)

    def _set(self, index: Index) -> None:
        super()._set(index)
        self.paths = _paths(index)

    @lazy
    def labels(self) -> NDArray[np.int64] | None:
        """One class index per image; None without classes."""
        if not self.classes:
            return None
        per_folder: NDArray[np.int64] = self.index.arrays["label"]
        return per_folder[self.index.arrays["folder_of"]]

    @lazy
    def skipped(self) -> Mapping[str, int]:
        """The number of files that are not images, by suffix."""
        return dict(self.index.about.get("skipped", {}))

    @lazy
    def notes(self) -> Sequence[str]:
        """One line for each kind of skipped entry."""
        about = self.index.about
        return [*unlistable_notes(self.name, about.get("unlistable", [])), *skipped_notes(self.skipped)]

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one file."""
        return read_file(self.root / self.paths[index])

    def place(self, index: int) -> str:
        """Return the path of one file."""
        return str(self.root / self.paths[index])

    def short_name(self, index: int) -> str:
        """Return the path relative to the folder."""
        return self.paths[index]


def _paths(index: Index) -> Paths:
    return Paths(index.strings("folders"), index.strings("names"), index.arrays["folder_of"])


def _build(root: Path, of: str, progress: Found) -> Index:
    found, unlistable = scan_folders(root, progress)
    folders = sorted(found)
    counts, names, skipped = only_images([found[folder] for folder in folders], SUFFIXES)
    if others := sum(listed.others for listed in found.values()):
        skipped[OTHER_KIND] = others
    if not counts.sum():
        notes = [*unlistable_notes(str(root), unlistable), *skipped_notes(skipped)]
        skipped_text = "".join(f"{note[0].upper()}{note[1:]}. " for note in notes)
        raise DataError(
            f"there are no images below {root} (looked for {', '.join(sorted(SUFFIXES))}). {skipped_text}"
            "Give the folder that contains the images."
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


def _labels_of(folders: list[str], counts: list[int]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return one class index per folder, and the class names; none if an image is outside all sub-folders."""
    tops = [folder.partition("/")[0] for folder in folders]
    names = sorted({top for top, count in zip(tops, counts, strict=True) if count})
    if "" in names or len(names) < 2:
        return np.zeros(len(folders), dtype=np.int64), ()
    number = {name: i for i, name in enumerate(names)}
    return np.array([number.get(top, 0) for top in tops], dtype=np.int64), tuple(names)


def _sizes(root: Path, paths: Paths) -> NDArray[np.int64]:
    """Return the sizes in bytes of evenly spread images; of all if there are few."""
    sampled = np.unique(np.linspace(0, len(paths) - 1, _SIZES_SAMPLED).astype(np.int64))
    prefix = os.fsencode(root) + b"/"
    return np.fromiter((_size(prefix + path) for path in paths.raw(sampled)), dtype=np.int64, count=len(sampled))


def _size(path: bytes) -> int:
    try:
        return retrying(partial(os.stat, path), os.fsdecode(path)).st_size
    except OSError:
        return UNKNOWN


def _is_current(root: Path, index: Index) -> bool:
    """Return whether the folders, the sampled sizes and the known suffixes are those that the index was built from.

    The permission to list a folder changes without its mtime, so an index that lacks a folder is never current.
    """
    if index.about.get("suffixes") != sorted(SUFFIXES) or index.about.get("unlistable"):
        return False
    changed = index.arrays["changed"]
    for folder, before in zip(index.strings("folders"), changed.tolist(), strict=True):
        try:
            if before == UNKNOWN or (root / folder).stat().st_mtime_ns != before:
                return False
        except OSError:
            return False
    return np.array_equal(_sizes(root, _paths(index)), index.arrays["sizes"])
