"""Where images come from. A source has a length, fetches one image by index as it is stored, and may know labels.

Another kind of data is another class with these members, and a line in `open_source`. A source that is read best in
sequence also has `groups` (the number of images in every shard) and maybe `window` (the most images that can be mixed
cheaply); see `order.py`.
"""

import hashlib
import os
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, nearest
from carp.images.decoding.decode import Pixels, Stored, decode
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.index import Found, silent
from carp.images.sources import embedded
from carp.images.sources.file_list import LISTS, ListSource
from carp.images.sources.folder import FolderSource
from carp.images.sources.map_style import DatasetSource, MapStyle
from carp.images.sources.named_sets import open_dataset
from carp.images.sources.parquet import ParquetSource
from carp.images.sources.patterns import files_of, is_pattern
from carp.images.sources.tar_shards import TarSource
from carp.images.sources.torchvision_sets import open_torchvision

KINDS = ("auto", "folder", "list", "tar", "parquet", "torchvision", "dataset", "embedded")
_ARCHIVES = frozenset({".zip", ".gz", ".bz2", ".xz", ".7z", ".rar"})
_EMBEDDED = {"shapes": "train", "shapes-test": "test"}
_PREFIX = "embedded:"


class Named(Protocol):
    """What has a name and maybe labels: images, or their features."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """A class index per image, [N]; or [N, C] where images have several, 1 for each class that an image shows."""


class Source(Named, Protocol):
    """An indexable collection of images."""

    @property
    def fingerprint(self) -> str:
        """Changes when the images change."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty without labels."""

    def __len__(self) -> int: ...

    def fetch(self, index: int) -> Stored:
        """One image as it is stored: the bytes of an encoded file, or RGB bytes [H, W, 3]."""

    def place(self, index: int) -> str:
        """Where one image lies, in words that a person can follow."""


def read(source: Source, index: int) -> Pixels:
    """RGB bytes [H, W, 3] of one image."""
    return decode(source.fetch(index), source.place(index))


class ArraySource:
    """Images held in memory, [N, H, W, 3] bytes."""

    def __init__(
        self,
        images: Pixels,
        labels: NDArray[np.int64] | None = None,
        classes: tuple[str, ...] = (),
        *,
        name: str = "array",
        fingerprint: str | None = None,
    ) -> None:
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise DataError(f"an image array must be uint8 [N, H, W, 3], received {images.dtype} {list(images.shape)}.")
        if labels is not None and len(labels) != len(images):
            raise DataError(f"there are {len(images)} images but {len(labels)} labels.")
        self.images, self.labels, self.classes, self.name = images, labels, classes, name
        self.fingerprint = fingerprint or hashlib.sha256(images.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, index: int) -> Stored:
        """RGB bytes [H, W, 3] of one image."""
        pixels: Pixels = self.images[index]
        return pixels

    def place(self, index: int) -> str:
        """The number of the image."""
        return f"{self.name}[{index}]"


Openable = str | Path | Pixels | MapStyle | Source


def open_source(
    data: Openable,
    *,
    kind: str = "auto",
    root: str | Path | None = None,
    download: bool = False,
    index: Path | None = None,
    progress: Found = silent,
) -> Source:
    """Open images, wherever they are.

    Args:
        data: A folder, a list of paths (.txt, .csv, .tsv), tar shards or Parquet files (one, a folder of them, a glob,
            a range like `a-{000..009}.tar`), `torchvision:NAME`, `dataset:NAME:PART`, `embedded:NAME`, an image array
            [N, H, W, 3], a map-style data set or a sequence of images; a source is passed through. `KIND:PATH` says
            the kind.
        kind: What a path is, one of `KINDS`; auto looks at it.
        root: Folder of data sets, for `torchvision:` and `dataset:`.
        download: Let torchvision fetch what is missing.
        index: Folder where indices were kept (`keep_index`).
        progress: Called with (images found, 0) while an index is built.
    """
    if isinstance(data, np.ndarray):
        return ArraySource(data)
    if not isinstance(data, str | Path):
        return _open_object(data)
    text = str(data)
    prefix, sign, rest = text.partition(":")
    if sign and prefix in KINDS and prefix != "auto" and not os.path.exists(text):  # noqa: PTH110 - also for names that are too long
        if kind not in {"auto", prefix}:
            raise DataError(f"source is '{kind}', but the data are {text}. Set source=auto.")
        kind, text = prefix, rest
    try:
        if kind == "auto":
            kind = _kind_of(text)
        if kind == "embedded":
            return _open_embedded(text)
        if kind == "torchvision":
            return open_torchvision(text, root=root, download=download)
        if kind == "dataset":
            return open_dataset(text, root=root, download=download, index=index, progress=progress)
        return _open_path(kind, text, index, progress)
    except OSError as error:  # a folder that may not be listed, a name that is too long, …
        raise DataError(f"cannot open {text}: {error.strerror or error}.") from error


def _open_object(data: MapStyle | Source) -> Source:
    if hasattr(data, "fetch") and hasattr(data, "place"):
        return cast(Source, data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, dict | bytes):
        raise DataError(
            f"cannot take images from a {type(data).__name__}: give a path, an array [N, H, W, 3], or a data set with "
            "a length and items by number."
        )
    return DatasetSource(data)


def _open_path(kind: str, text: str, index: Path | None, progress: Found) -> Source:
    path = Path(text).expanduser()
    if kind == "folder":
        if not path.is_dir():
            raise DataError(f"there is no folder {text}. Give a folder of images.")
        return FolderSource(path, index=index, progress=progress)
    if kind == "list":
        return ListSource(path, index=index, progress=progress)
    if kind == "tar":
        return TarSource(files_of(text, ".tar"), name=text, index=index, progress=progress)
    if kind == "parquet":
        return ParquetSource(files_of(text, ".parquet"), name=text, progress=progress)
    raise DataError(f"there is no kind of source '{kind}'.{nearest(kind, KINDS)} Kinds: {', '.join(KINDS)}.")


def _kind_of(text: str) -> str:
    """What a path is, by looking at it."""
    path = Path(text).expanduser()
    if path.is_dir():
        return _kind_of_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".tar" or text.lower().endswith((".tar.gz", ".tgz")):  # the shards tell how to decompress them
        return "tar"
    if suffix == ".parquet":
        return "parquet"
    if path.is_file():
        if suffix in LISTS:
            return "list"
        raise DataError(f"{text} is a file, {_remedy(path)}.")
    if path.exists():
        raise DataError(f"{text} is a pipe, a socket or a device: give a folder of images, or a regular file.")
    if is_pattern(text):
        raise DataError(f"cannot tell what {text} is: give shards (.tar), Parquet files, or set source=tar or parquet.")
    names = [_PREFIX + name for name in _EMBEDDED]
    kind, sign, rest = text.partition(":")
    close = nearest(kind, KINDS).replace("'?", f":{rest}'?") if sign else nearest(text, names)
    raise DataError(
        f"there is no folder {text}.{close} Give a folder of images, a list (.txt, .csv), tar shards, "
        f"Parquet files, torchvision:NAME, dataset:NAME, or one of {', '.join(names)}."
    )


def _kind_of_folder(path: Path) -> str:
    """A folder that holds nothing visible but shards or Parquet files, and notes about them, is these."""
    suffixes = set()
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a Path per file is slow
            if suffix in SUFFIXES or (suffix not in {".tar", ".parquet"} and entry.is_dir()):
                return "folder"
            suffixes.add(suffix)
    if ".tar" in suffixes:
        return "tar"
    return "parquet" if ".parquet" in suffixes else "folder"


def is_collection(file: Path) -> bool:
    """Whether a file holds or lists many images, by its name."""
    return file.suffix.lower() in {*LISTS, ".tar", ".parquet"}


def _remedy(file: Path) -> str:
    """What to do with a file that was given in the place of a folder."""
    if file.suffix.lower() in SUFFIXES:
        return f"one image: give the folder that holds the images, e.g. {file.parent}"
    if file.suffix.lower() in _ARCHIVES:
        return "an archive: unpack it and give the folder of the images"
    return "not a folder: give a folder of images, or a list of them as .txt or .csv (or write list:FILE if it is one)"


def unlabelled(source: Named) -> DataError:
    """The error for a source that has no labels where they are needed, and how it can get some."""
    remedies = {
        ListSource: "add a second column with the class of every image",
        TarSource: "add a .cls file to every sample",
        ParquetSource: "add a column 'label'",
        DatasetSource: "let its items be (image, label)",
    }
    folders = "put its images into one sub-folder per class, at least two"
    remedy = next((words for kind, words in remedies.items() if isinstance(source, kind)), folders)
    return DataError(f"{source.name} has no labels: {remedy}.")


def single_labels(source: Named, what: str = "k-NN") -> NDArray[np.int64]:
    """One class index per image, [N], or the error for a source that has none or several; `what` needs them."""
    if source.labels is None:
        raise unlabelled(source)
    if source.labels.ndim > 1:
        raise DataError(f"{what} needs one label per image; {source.name} has several: use few-shot.")
    return source.labels


def notes_on(source: Source) -> list[str]:
    """Lines about what was passed over when a source was opened."""
    return list(getattr(source, "notes", ()))


def keep_index(source: Source, folder: Path) -> None:
    """Store what a source knows of its images in a folder, for the next time and for its workers."""
    keep = getattr(source, "keep_index", None)
    if keep is not None:
        keep(folder)


def _open_embedded(name: str) -> ArraySource:
    if name not in _EMBEDDED:
        raise DataError(
            f"there is no embedded set '{name}'.{nearest(name, _EMBEDDED)} Embedded sets: {', '.join(_EMBEDDED)}."
        )
    made = embedded.shapes(_EMBEDDED[name])
    return ArraySource(made.images, made.labels, made.classes, name=_PREFIX + name)
