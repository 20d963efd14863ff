"""Where images come from. A source has a length, fetches one image by index as it is stored, and may know labels.

Another kind of data is another class with these members, and a line in `open_source`.
"""

import hashlib
import os
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from carp.data import embedded
from carp.data.decode import Pixels, Stored, decode, read_file
from carp.errors import DataError, nearest

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
_ARCHIVES = frozenset({".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"})
_EMBEDDED = {"shapes": "train", "shapes-test": "test"}
_PREFIX = "embedded:"


class Source(Protocol):
    """An indexable collection of images."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def fingerprint(self) -> str:
        """Changes when the images change."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """A class index per image, or None."""

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


class FolderSource:
    """All images below a folder, in the order of their paths.

    When every image lies in one of several sub-folders, the names of these are the classes.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)
        found = _find_images(root)
        if not found:
            raise DataError(
                f"there are no images below {root} (looked for {', '.join(sorted(SUFFIXES))}). "
                "Give the folder that holds the images."
            )
        self.paths = [path for path, _ in found]
        listing = "\n".join(f"{path}\t{size}" for path, size in found)
        self.fingerprint = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
        self.labels, self.classes = _labels_of(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, index: int) -> Stored:
        """The bytes of one file."""
        return read_file(self.root / self.paths[index])

    def place(self, index: int) -> str:
        """The path of one file."""
        return str(self.root / self.paths[index])


def open_source(data: str | Path | NDArray[np.uint8] | Source) -> Source:
    """Open a folder, an embedded set (`embedded:shapes`), an image array, or pass a source through."""
    if isinstance(data, np.ndarray):
        return ArraySource(data)
    if not isinstance(data, str | Path):
        return data
    if str(data).startswith(_PREFIX):
        return _open_embedded(str(data).removeprefix(_PREFIX))
    path = Path(data).expanduser()
    if path.is_dir():
        return FolderSource(path)
    if path.exists():
        raise DataError(f"{data} is a file, {_remedy(path)}.")
    names = [_PREFIX + name for name in _EMBEDDED]
    raise DataError(
        f"there is no folder {data}.{nearest(str(data), names)} Give a folder of images, or one of {', '.join(names)}."
    )


def _remedy(file: Path) -> str:
    """What to do with a file that was given in the place of a folder."""
    if file.suffix.lower() in SUFFIXES:
        return f"one image: give the folder that holds the images, e.g. {file.parent}"
    if file.suffix.lower() in _ARCHIVES:
        return "an archive: unpack it and give the folder of the images"
    return "not a folder: give a folder of images"


def _open_embedded(name: str) -> ArraySource:
    if name not in _EMBEDDED:
        raise DataError(
            f"there is no embedded set '{name}'.{nearest(name, _EMBEDDED)} Embedded sets: {', '.join(_EMBEDDED)}."
        )
    made = embedded.shapes(_EMBEDDED[name])
    return ArraySource(made.images, made.labels, made.classes, name=_PREFIX + name)


def _find_images(root: Path) -> list[tuple[str, int]]:
    """(path relative to root, size in bytes) of every visible image file, sorted by path.

    Links are followed, but into no folder twice; a link that leads nowhere is passed over.
    """
    found: list[tuple[str, int]] = []
    folders, seen = [""], {os.path.realpath(root)}
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise DataError(f"cannot list the folder {root / folder}: {error.strerror}.") from error
        for entry in visible:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                target = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if target not in seen:
                    seen.add(target)
                    folders.append(relative)
            elif entry.is_file() and os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - a Path per file is slow
                found.append((relative, entry.stat().st_size))
    return sorted(found)


def _labels_of(paths: list[str]) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    tops = [path.partition("/")[0] if "/" in path else "" for path in paths]
    names = sorted(set(tops))
    if "" in names or len(names) < 2:
        return None, ()
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[top] for top in tops], dtype=np.int64), tuple(names)
