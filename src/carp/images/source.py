"""The contract of an image source: a length, `fetch` for one image as it is stored, and possibly labels.

A new kind of source is one file in `images/sources/`: a subclass of `Source` that sets `kind`, defines `open`,
`__len__`, `fetch` and `place`, and sets `name` and `fingerprint` on its objects. Everything else has a default. The
class registers itself; from then on it is available to `open_source`, `source=KIND`, `KIND:REST`, every command and the
error messages that list the kinds. A class defined anywhere else works as well, as soon as its module is imported.
"""

import hashlib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from carp.console.addresses import is_address, last_name
from carp.errors import UnreadableImageError
from carp.images.decoding.decode import Pixels, Stored, decode

T = TypeVar("T")
Found = Callable[[int, int], None]  # called with (images found so far, 0), as the total is unknown
_HASHED = 16  # images that a sample covers
_REGISTERED: dict[str, type["Source"]] = {}  # by module and name of the class, so that a reload replaces it


def silent(_found: int, _all: int) -> None:
    """Report no progress."""


def lazy(compute: Callable[[Any], T]) -> T:
    """Compute an attribute of `Source` when it is first used: a `cached_property` with the type of the attribute."""
    return cast(T, cached_property(compute))


class MapStyle(Sized, Protocol):
    """A map-style dataset: a length and integer indexing."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Opening:
    """Options of `open_source` besides the data; each kind uses those that concern it.

    Attributes:
        root: Folder of datasets.
        download: Whether missing data may be downloaded.
        index: Folder of the indices that `Source.keep_index` wrote.
        progress: Called with (images found so far, 0) while an index is built.
        cache_gb: Gigabytes of remote shards on the local disk; None for the environment's or the default.
    """

    root: Path | None = None
    download: bool = False
    index: Path | None = None
    progress: Found = silent
    cache_gb: float | None = None


class Source(ABC):
    """An indexable collection of images.

    Declared by the class:

    Attributes:
        kind: The word in `source=KIND` and `KIND:REST`. Empty: opened from Python objects only. Only classes that set
            it are registered.
        example: How a user writes data of this kind, for error messages and help: "a folder of images".
        suffixes: File names with one of these endings, in lower case, are of this kind.
        claim_order: `open_source` asks the kinds in this order whether they claim data whose kind is not given; kinds
            with the same number are asked in alphabetical order.
        label_remedy: How a source of this kind gets labels, as an imperative: the end of an error message.

    Known to an object; a subclass sets these, or computes them when they are needed with `lazy`:

    Attributes:
        name: Its name in messages and results.
        fingerprint: Changes when the images change. It may cover names and sizes alone, so that it is known at once.
        sample: A hash of a few images. It tells two folders apart whose files have the same names and sizes.
        labels: One class index per image, [N]; or [N, C] where an image may show several classes, 1 for each that it
            shows. None without labels.
        classes: The names of the classes; empty without labels.
        groups: The number of images in each shard, where images are best read shard by shard: `order.py` then shuffles
            shards, and the images of a few of them. None if the order does not matter.
        window: The largest number of images that can be shuffled together cheaply; None for any number.
        notes: One line for each kind of entry that was skipped when the source was opened.
        skipped: The number of files that are not images, by suffix.
    """

    kind: ClassVar[str] = ""
    example: ClassVar[str] = ""
    suffixes: ClassVar[frozenset[str]] = frozenset()
    claim_order: ClassVar[int] = 50
    label_remedy: str = "give images of a kind that has labels (docs/data.md)"

    name: str
    fingerprint: str
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    window: int | None = None
    notes: Sequence[str] = ()
    skipped: Mapping[str, int] = MappingProxyType({})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            _register(cls)

    @classmethod
    def claims(cls, data: object) -> bool:
        """Whether data whose kind is not given are of this kind: by default, whether their suffix is one of its own."""
        if is_address(data):
            return last_name(str(data)).lower().endswith(tuple(cls.suffixes))
        return is_text(data) and str(data).lower().endswith(tuple(cls.suffixes)) and not as_path(data).is_dir()

    @classmethod
    def open(cls, data: Any, how: Opening) -> "Source":
        """Open data that `claims` accepts, or the REST of `KIND:REST`; every kind defines it."""
        raise NotImplementedError

    @lazy
    def sample(self) -> str:
        """A hash of a few images."""
        return _hash_of_some(self)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, index: int) -> Stored:
        """Return one image as it is stored: the bytes of an encoded file, or RGB bytes [H, W, 3]."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Return where an image is, for messages: a path, or another description that people understand."""

    def short_name(self, index: int) -> str:
        """Return the name of an image in a list: its path relative to the source, if it has one."""
        return self.place(index)

    def keep_index(self, folder: Path) -> None:  # noqa: B027 - a kind without an index has nothing to store
        """Store the index in a folder, where `open_source` finds it the next time and worker processes share it."""


class SourceLike(Protocol):
    """A user-defined object that `open_source` accepts: at least a length, `fetch` and `place`."""

    def __len__(self) -> int: ...

    def fetch(self, index: int) -> Stored:
        """See `Source.fetch`."""

    def place(self, index: int) -> str:
        """See `Source.place`."""


Openable = str | Path | Pixels | MapStyle | SourceLike | Source


def read(source: Source, index: int) -> Pixels:
    """Return RGB bytes [H, W, 3] of one image."""
    return decode(source.fetch(index), source.place(index))


def is_text(data: object) -> bool:
    """Return whether data are a path or a word, not a Python object that holds images."""
    return isinstance(data, str | Path)


def as_path(data: object) -> Path:
    """Return data as a path, with `~` expanded."""
    return Path(str(data)).expanduser()


def all_kinds() -> list[type[Source]]:
    """Return every kind of source, in the order in which `open_source` asks them."""
    _import_kinds()
    return sorted(_REGISTERED.values(), key=lambda kind: (kind.claim_order, kind.kind))


def kinds_by_word() -> dict[str, type[Source]]:
    """Return the kinds that `source=KIND` and `KIND:REST` may name."""
    return {kind.kind: kind for kind in all_kinds() if kind.kind}


def is_collection(file: Path) -> bool:
    """Return whether a file holds or lists many images, by its name."""
    return any(file.name.lower().endswith(tuple(kind.suffixes)) for kind in all_kinds())


def _register(cls: type[Source]) -> None:
    if cls.open.__func__ is Source.open.__func__:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__} has a kind, so it needs a class method `open`")
    own = f"{cls.__module__}.{cls.__qualname__}"
    other = next((name for name, known in _REGISTERED.items() if known.kind == cls.kind and name != own), None)
    if cls.kind and other is not None:
        raise TypeError(f"{own} and {other} both have the kind '{cls.kind}': rename one of them")
    _REGISTERED[own] = cls


@cache
def _import_kinds() -> None:
    """Import every module of `images/sources`, whose classes then register themselves."""
    package = importlib.import_module("carp.images.sources")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def _hash_of_some(source: Source) -> str:
    """Return a hash of the number of images and of a few of them."""
    digest = hashlib.sha256(f"{len(source)}".encode())
    for index in np.unique(np.linspace(0, len(source) - 1, _HASHED).astype(int)).tolist():
        try:
            stored = source.fetch(index)
        except UnreadableImageError:
            digest.update(b"unreadable")
            continue
        digest.update(stored if isinstance(stored, bytes) else f"{stored.shape}".encode() + stored.tobytes())
    return digest.hexdigest()
