"""Splits of the paper's datasets that are defined by a list, or by an annotation of every image.

VOC 2007 has several labels per image, iNaturalist 2018 lists its two splits in JSON files, and for ImageNet there are
published lists of 1% and 10% of the training images.
"""

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.files.regular import read_regular, read_text
from carp.images.decoding.decode import Stored, read_file
from carp.images.index import Index, IndexedSource, pack, strings_arrays
from carp.images.sources.folder import FolderSource

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_PATHS_AT_A_TIME = 100_000
_MOST_BYTES = 1 << 30  # of a published list; that of iNaturalist has 120 MB


class FilesSource(IndexedSource):
    """Files below a folder, in a given order; labels are [N], or [N, C] for several per image."""

    _FROM_INDEX = frozenset({"paths", "labels"})

    def __init__(
        self, folder: Path, paths: Sequence[str], labels: NDArray[np.int64], classes: Sequence[str], *, name: str
    ) -> None:
        self.folder, self.name = folder, name
        of = f"{name}:{os.path.abspath(folder)}"  # noqa: PTH100 - links in the path stay as they are
        index = Index(of, {"classes": list(classes)}, {**strings_arrays("paths", pack(paths)), "labels": labels})
        index.about["fingerprint"] = index.fingerprint("paths", "labels")
        self._set(index)

    def _set(self, index: Index) -> None:
        super()._set(index)
        self.labels = index.arrays["labels"]
        self.paths = index.strings("paths")

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one file."""
        return read_file(self.folder / self.paths[index])

    def place(self, index: int) -> str:
        """Return the path of one file."""
        return str(self.folder / self.paths[index])

    def short_name(self, index: int) -> str:
        """Return the path relative to the folder."""
        return self.paths[index]


def voc_split(dataset: Any, *, name: str) -> FilesSource:
    """Return the images of torchvision's `VOCDetection`, and the classes that each shows, as [N, C] of 1 and 0.

    An image shows a class when its annotation has an object of it that is not marked as difficult.
    """
    number = {word: i for i, word in enumerate(VOC_CLASSES)}
    labels = np.zeros((len(dataset), len(VOC_CLASSES)), dtype=np.int64)
    for row, file in enumerate(dataset.annotations):
        for word in _objects(Path(file)):
            if word not in number:
                raise DataError(
                    f"{file} has an object '{word}', which is not a class of VOC. Unpack the dataset again."
                )
            labels[row, number[word]] = 1
    files = [Path(file) for file in dataset.images]
    return FilesSource(files[0].parent, [file.name for file in files], labels, VOC_CLASSES, name=name)


def _objects(annotation: Path) -> list[str]:
    """Return the names of the objects that are not difficult."""
    try:
        objects = ET.parse(annotation).getroot().iter("object")
    except (OSError, ET.ParseError) as error:
        raise DataError(f"cannot read the annotation {annotation}: {error}. Unpack the dataset again.") from error
    return [one.findtext("name", "").strip() for one in objects if one.findtext("difficult", "0").strip() != "1"]


def inaturalist_split(dataset: Any, listed: Path, *, name: str) -> FilesSource:
    """Return the images of torchvision's `INaturalist` that a file such as train2018.json names, with their species."""
    species = {f"{dataset.all_categories[label]}/{file}": label for label, file in dataset.index}
    # The archive's own folder, train_val2018, is renamed by torchvision
    paths = [file.partition("/")[2] for file in _names_in_json(listed)]
    _all_there(paths, species, listed, Path(dataset.root))
    labels = np.array([species[path] for path in paths], dtype=np.int64)
    return FilesSource(Path(dataset.root), paths, labels, dataset.all_categories, name=name)


def _names_in_json(file: Path) -> list[str]:
    try:
        return [image["file_name"] for image in json.loads(read_regular(file, _MOST_BYTES))["images"]]
    except OSError as error:
        raise DataError(
            f"cannot read {file}, which lists the images of this split: {error.strerror}. "
            "Get it from https://github.com/visipedia/inat_comp/tree/master/2018."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{file} is not the list of iNaturalist: it must be JSON with images and file_name.") from None


def imagenet_split(train: FolderSource, listed: Path, *, name: str) -> FilesSource:
    """Return the training images that a list names, in its order, by names such as n01440764_10026.JPEG."""
    try:
        names = read_text(listed, _MOST_BYTES).split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the list {listed}: {_reason(error)}. Download it again.") from error
    paths = [f"{file.partition('_')[0]}/{file}" for file in names]
    places = _places(train, {os.fsencode(path) for path in paths})
    _all_there(paths, places, listed, train.root)
    assert train.labels is not None, "the number of classes was checked"
    labels = train.labels[[places[path] for path in paths]]
    return FilesSource(train.root, paths, labels, train.classes, name=name)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _places(source: FolderSource, wanted: set[bytes]) -> dict[str, int]:
    """Return the indices of these paths in a folder; a million paths are never held at once."""
    found = {}
    for start in range(0, len(source), _PATHS_AT_A_TIME):
        places = np.arange(start, min(start + _PATHS_AT_A_TIME, len(source)))
        for place, path in enumerate(source.paths.raw(places), start):
            if path in wanted:
                found[os.fsdecode(path)] = place
    return found


def _all_there(paths: Sequence[str], known: Mapping[str, int], listed: Path, folder: Path) -> None:
    if not paths:
        raise DataError(f"{listed} names no images: download it again.")
    missing = [path for path in paths if path not in known]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} images that {listed} names are not in {folder}; the first is "
            f"{missing[0]}. Complete the dataset, or give the list of this version."
        )
