"""The paper's datasets by name: `dataset:pets:train`, `dataset:voc07:test`, `dataset:imagenet:1%`.

A dataset is looked for below one root, as torchvision stores it there, or as folders of classes in ROOT/NAME/train and
test. Its numbers of images and classes must be those in the table, so that results under its name are comparable.
"""

import shlex
from pathlib import Path

from carp.errors import DataError, nearest
from carp.images.decoding.decode import decode
from carp.images.source import Opening, Source
from carp.images.sources.folder import FolderSource
from carp.images.sources.paper.paper_datasets import BY_NAME, PREFIX, Dataset, Presence, find
from carp.images.sources.paper.ranked_sets import image_folder, open_ranked
from carp.images.sources.paper.split_lists import imagenet_split, inaturalist_split, voc_split
from carp.images.sources.python_objects import MapStyleSource
from carp.images.sources.torchvision_sets import make_dataset


class PaperSource(Source):
    """`dataset:NAME` or `dataset:NAME:SPLIT`: opened as the kind of source that its layout on the disk requires."""

    kind = "dataset"
    example = "dataset:NAME:SPLIT"

    @classmethod
    def open(cls, data: str, how: Opening) -> Source:
        """Open a split below the folder `root`; the training images where no split is named."""
        row, split = read_name(data)
        if how.root is None:
            raise DataError(
                f"the folder of {row.source(split)} is unknown: set root=FOLDER; `carp datasets --root FOLDER` lists "
                "the datasets in a folder."
            )
        return open_split(row, split, how.root, how)


def read_name(name: str) -> tuple[Dataset, str]:
    """Return the row and the split (`train`, `test`, or one of its lists) that `NAME` or `NAME:SPLIT` means."""
    word, _, split = name.removeprefix(PREFIX).partition(":")
    row = find(word)
    if row is None:
        raise DataError(
            f"there is no dataset '{word}'.{nearest(word.lower(), BY_NAME)} Datasets: {', '.join(BY_NAME)}."
        )
    splits = {"": "train", row.train.word: "train", row.test.word: "test", "train": "train", "test": "test"}
    splits |= {listed: listed for listed in row.lists}
    if row.is_ranked:
        if split:
            raise DataError(f"{row.name} has no splits, received '{split}'. Write {row.source('')}.")
        return row, ""
    if split not in splits:
        own = ("train", "test", *row.lists)
        raise DataError(f"{row.name} has the splits {', '.join(own)}, received '{split}'.{nearest(split, own)}")
    return row, splits[split]


def counterpart(name: str) -> str | None:
    """Return the word for the test images that go with `dataset:NAME` or a list of it; None for anything else.

    If a split is named, as in `dataset:NAME:train`, only that split is used.
    """
    if not name.startswith(PREFIX):
        return None
    row, split = read_name(name)
    if row.is_ranked:
        return None
    return row.source("test") if split in row.lists or ":" not in name.removeprefix(PREFIX) else None


def open_split(row: Dataset, split: str, root: Path, how: Opening) -> Source:
    """Return a split of a row below `root`: `train`, `test`, or one of its lists; or a whole dataset for search."""
    if row.is_ranked:
        return open_ranked(row, root, how)
    name, download = row.source(split), how.download and row.download
    source: Source
    if split in row.lists:
        source = imagenet_split(_folder(row, "train", root, how), root / row.name / row.lists[split].file, name=name)
    elif _is_kept_by_torchvision(row, root) or (download and not _class_folder(row, split, root)):
        source = _kept_by_torchvision(row, split, root, download=download)
    else:
        source = _folder(row, split, root, how)
    for what, found, expected in (
        ("images", len(source), row.images(split)),
        ("classes", len(source.classes), row.classes),
    ):
        if found != expected:
            raise DataError(
                f"{name} has {found:,} {what} in {root}, not {expected:,}: it is incomplete, or not this dataset. "
                "To use it as it is, give its folder as the data."
            )
    return source


def _is_kept_by_torchvision(row: Dataset, root: Path) -> bool:
    return row.layout != "folders" and (root / row.marker).exists()


def _kept_by_torchvision(row: Dataset, split: str, root: Path, *, download: bool) -> Source:
    name, published = row.source(split), row.split(split)
    dataset = make_dataset(row.torchvision, published.arguments, name=name, root=root / row.folder, download=download)
    if row.layout == "voc":
        return voc_split(dataset, name=name)
    if row.layout == "inaturalist":
        return inaturalist_split(dataset, root / row.folder / f"{published.word}2018.json", name=name)
    return MapStyleSource(dataset, name=name)


def _folder(row: Dataset, split: str, root: Path, how: Opening) -> FolderSource:
    folder = _class_folder(row, split, root)
    if folder is None:
        remedy = " Add download=true to download it." if row.download else ""
        raise DataError(
            f"{row.source(split)} is not in {root}: neither {row.marker} nor {row.name}/{split} exists.{remedy} "
            f"`carp datasets --root {shlex.quote(str(root))}` shows how to get it."
        )
    source = FolderSource(folder, index=how.index, progress=how.progress)
    source.name = row.source(split)
    return source


def _class_folder(row: Dataset, split: str, root: Path) -> Path | None:
    """Return the folder of a split with one folder per class; VOC, with several labels per image, has none."""
    names = (row.split(split).word, split) if row.layout != "voc" else ()
    return next((root / row.name / name for name in names if (root / row.name / name).is_dir()), None)


def datasets_folder(root: str | Path) -> Path:
    """Return the folder `root`; raise an error if it does not exist."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"--root {root} is not a folder. Give the folder that contains the datasets.")
    return folder


def look(row: Dataset, root: Path) -> Presence:
    """Look for a dataset below `root`; open its smaller split and one image of it, without a download."""
    try:
        if row.is_ranked:
            return _look_at_ranked(row, root)
        folders = {split: _class_folder(row, split, root) for split in ("train", "test")}
        by_torchvision = _is_kept_by_torchvision(row, root)
        if not any(folders.values()) and not by_torchvision:  # torchvision's classes may write before they fail
            return Presence("absent")
        smaller, larger = sorted(folders, key=row.images)
        source = open_split(row, smaller, root, Opening())
        decode(source.fetch(0), source.place(0))
        if not by_torchvision:
            _check_class_folders(row, larger, root)
    except OSError as error:
        return Presence("broken", reason=f"cannot read {error.filename}: {error.strerror}")
    except DataError as error:
        return Presence("broken", reason=str(error).removesuffix("."))
    except Exception as error:  # torchvision raises whatever its libraries raise; the reason is shown
        return Presence("broken", reason=f"{type(error).__name__}: {' '.join(str(error).split())}")
    lists = [row.source(word) for word, subset in row.lists.items() if (root / row.name / subset.file).is_file()]
    return Presence("present", row.source("train"), row.source("test"), tuple(lists))


def _look_at_ranked(row: Dataset, root: Path) -> Presence:
    if image_folder(row, root) is None:
        return Presence("absent")
    source = open_ranked(row, root, Opening())
    decode(source.fetch(0), source.place(0))
    return Presence("present", row.source(""))


def _check_class_folders(row: Dataset, split: str, root: Path) -> None:
    """Check the larger split by counting its folders only, without listing them."""
    folder = _class_folder(row, split, root)
    count = sum(child.is_dir() for child in folder.iterdir()) if folder else 0
    if count != row.classes:
        raise DataError(f"{folder or root / row.name / split} has {count:,} classes, not {row.classes:,}.")
