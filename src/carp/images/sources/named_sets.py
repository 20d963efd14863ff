"""The paper's data sets by name: `dataset:pets:train`, `dataset:voc07:test`, `dataset:imagenet:1%`.

A data set is looked for below one root, as torchvision keeps it there, or as folders of classes in ROOT/NAME/train and
test. What is opened has the table's numbers of images and classes, so that a result under its name is one.
"""

import shlex
from pathlib import Path

from carp.errors import DataError, nearest
from carp.images.decoding.decode import decode
from carp.images.index import Found, silent
from carp.images.sources.folder import FolderSource
from carp.images.sources.map_style import DatasetSource
from carp.images.sources.paper_datasets import BY_NAME, PREFIX, Dataset, Presence, find
from carp.images.sources.split_lists import FilesSource, imagenet_part, inaturalist_part, voc_part
from carp.images.sources.torchvision_sets import make_dataset

NamedSource = DatasetSource | FolderSource | FilesSource


def open_dataset(
    name: str, *, root: str | Path | None, download: bool, index: Path | None = None, progress: Found = silent
) -> NamedSource:
    """The images of `NAME` or `NAME:PART` below the folder `root`; those for training where no part is named."""
    row, part = read_name(name)
    if root is None:
        raise DataError(
            f"where is {row.source(part)}? Set root=FOLDER; `carp datasets --root FOLDER` tells what is in a folder."
        )
    return open_part(row, part, Path(root).expanduser(), download=download, index=index, progress=progress)


def read_name(name: str) -> tuple[Dataset, str]:
    """The row and the part (`train`, `test`, or one of its lists) that `NAME` or `NAME:PART` means."""
    word, _, part = name.removeprefix(PREFIX).partition(":")
    row = find(word)
    if row is None:
        raise DataError(
            f"there is no data set '{word}' in the table.{nearest(word.lower(), BY_NAME)} It has {', '.join(BY_NAME)}."
        )
    parts = {"": "train", row.train.word: "train", row.test.word: "test", "train": "train", "test": "test"}
    parts |= {listed: listed for listed in row.lists}
    if part not in parts:
        own = ("train", "test", *row.lists)
        raise DataError(f"{row.name} has the parts {', '.join(own)}, received '{part}'.{nearest(part, own)}")
    return row, parts[part]


def counterpart(name: str) -> str | None:
    """The word for the test images that go with `dataset:NAME` or a list of it; None for anything else.

    A part that is named, `dataset:NAME:train`, is meant alone.
    """
    if not name.startswith(PREFIX):
        return None
    row, part = read_name(name)
    return row.source("test") if part in row.lists or ":" not in name.removeprefix(PREFIX) else None


def open_part(
    row: Dataset, part: str, root: Path, *, download: bool = False, index: Path | None = None, progress: Found = silent
) -> NamedSource:
    """A part of a row: `train`, `test`, or one of its lists."""
    name, fetch = row.source(part), download and row.download
    if part in row.lists:
        train = _folder(row, "train", root, index, progress)
        source: NamedSource = imagenet_part(train, root / row.name / row.lists[part].file, name=name)
    elif _is_kept_by_torchvision(row, root) or (fetch and not _class_folder(row, part, root)):
        source = _kept_by_torchvision(row, part, root, download=fetch)
    else:
        source = _folder(row, part, root, index, progress)
    for what, found, expected in (
        ("images", len(source), row.images(part)),
        ("classes", len(source.classes), row.classes),
    ):
        if found != expected:
            raise DataError(
                f"{name} has {found:,} {what} in {root}, not {expected:,}: it is not whole, or not this data set. "
                "To use it as it is, give its folder as the data."
            )
    return source


def _is_kept_by_torchvision(row: Dataset, root: Path) -> bool:
    return row.layout != "folders" and (root / row.marker).exists()


def _kept_by_torchvision(row: Dataset, part: str, root: Path, *, download: bool) -> NamedSource:
    name, split = row.source(part), row.split(part)
    dataset = make_dataset(row.torchvision, split.arguments, name=name, root=root / row.folder, download=download)
    if row.layout == "voc":
        return voc_part(dataset, name=name)
    if row.layout == "inaturalist":
        return inaturalist_part(dataset, root / row.folder / f"{split.word}2018.json", name=name)
    return DatasetSource(dataset, name=name)


def _folder(row: Dataset, part: str, root: Path, index: Path | None, progress: Found) -> FolderSource:
    folder = _class_folder(row, part, root)
    if folder is None:
        remedy = " Add download=true to fetch it." if row.download else ""
        raise DataError(
            f"{row.source(part)} is not in {root}: looked for {row.marker} and {row.name}/{part}.{remedy} "
            f"`carp datasets --root {shlex.quote(str(root))}` says how to get it."
        )
    source = FolderSource(folder, index=index, progress=progress)
    source.name = row.source(part)
    return source


def _class_folder(row: Dataset, part: str, root: Path) -> Path | None:
    """The folder of a part with a folder for every class; VOC, with several labels per image, has none."""
    names = (row.split(part).word, part) if row.layout != "voc" else ()
    return next((root / row.name / name for name in names if (root / row.name / name).is_dir()), None)


def look(row: Dataset, root: Path) -> Presence:
    """Look for a data set below `root`, open its smaller part and one image of it, without a download."""
    try:  # some of torchvision's classes write, unpack or walk before they say that nothing is there
        folders = [_class_folder(row, part, root) for part in ("train", "test")]
        if not any(folders) and not _is_kept_by_torchvision(row, root):
            return Presence("absent")
        smaller = min(("train", "test"), key=row.images)
        source = open_part(row, smaller, root)
        decode(source.fetch(0), source.place(0))
        if isinstance(source, FolderSource):
            _check_class_folders(row, "train" if smaller == "test" else "test", root)
    except OSError as error:
        return Presence("broken", reason=f"cannot read {error.filename}: {error.strerror}")
    except DataError as error:
        return Presence("broken", reason=str(error).removesuffix("."))
    except Exception as error:  # torchvision raises whatever its parts raise; it is told, not hidden
        return Presence("broken", reason=f"{type(error).__name__}: {' '.join(str(error).split())}")
    lists = [row.source(word) for word, subset in row.lists.items() if (root / row.name / subset.file).is_file()]
    return Presence("present", row.source("train"), row.source("test"), tuple(lists))


def _check_class_folders(row: Dataset, part: str, root: Path) -> None:
    """The larger part is not listed: its folders are counted."""
    folder = _class_folder(row, part, root)
    count = sum(child.is_dir() for child in folder.iterdir()) if folder else 0
    if count != row.classes:
        raise DataError(f"{folder or root / row.name / part} has {count:,} classes, not {row.classes:,}.")
