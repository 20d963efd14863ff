"""Features on disk: extracted once, then read by any number of commands.

A store is a folder:

    features.npy    vectors [M, F], float32, memory-mapped when opened
    labels.npy      class numbers [M], or [M, C] where an image has several labels; absent without labels
    places.jsonl    one JSON string per image: where it is
    store.json      the origin of the features, the names of the classes, the images that could not be read, the
                    digests of the files above and of itself

`store.json` is written last, so a folder that has it is complete (`filling.py` writes it). The digests are verified
when a store is opened: all of them for files up to 64 MB, a sample for larger ones; `carp check` verifies everything.

Shapes: M images that can be read, F features, C classes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.features.extract import Features
from carp.files.digests import damage_of
from carp.files.manifest import Manifest
from carp.files.verdicts import Checked, judge_complete
from carp.images.identity import is_same_data
from carp.images.loading.quarantine import Unreadable
from carp.images.views.interpolation import DEFAULT_INTERPOLATION

MANIFEST, FEATURES, LABELS, PLACES = "store.json", "features.npy", "labels.npy", "places.jsonl"
_MANIFEST = Manifest(MANIFEST, 1, "Delete {folder} and embed again.", "features", "carp embed")
_MANY = 2**26  # bytes of labels whose values are checked when a store is opened


@dataclass(frozen=True)
class Origin:
    """The model, data and transform behind features: equal origins give equal features."""

    model: dict[str, Any]
    """`name`, `hash` of the weights, `branch`, `layer`, `epochs` if known, the `epoch` of `RUN@EPOCH`, and the `path`
    of the model."""
    transform: dict[str, Any]
    data: dict[str, Any]
    """`name`, `fingerprint`, `images`, and `sample`, which stores of earlier versions lack."""

    def key(self) -> str:
        """Return a hash of everything that features depend on; names do not matter."""
        parts = (self.model["hash"], self.model["layer"], self.transform, self.data["fingerprint"], self.data["images"])
        sample = [self.data["sample"]] if "sample" in self.data else []
        return hashlib.sha256(json.dumps([*parts, *sample], sort_keys=True).encode()).hexdigest()

    def without_sample(self) -> "Origin":
        """Return the origin as an earlier version recorded it."""
        return replace(self, data={name: value for name, value in self.data.items() if name != "sample"})

    def matches(self, other: "Origin") -> bool:
        """Return whether both have equal features, as far as what they record can tell."""
        same_key = self.without_sample().key() == other.without_sample().key()
        return same_key and is_same_data(self.data, other.data)


@dataclass(frozen=True)
class Store:
    """An opened store."""

    folder: Path
    origin: Origin
    classes: tuple[str, ...]
    unreadable: list[Unreadable]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size and digests of every file; empty for a store that was written by a version without digests."""
    label_remedy: ClassVar[str] = "embed images that have labels"

    @property
    def name(self) -> str:
        """The name of the images."""
        return str(self.origin.data["name"])

    @cached_property
    def features(self) -> Features:
        """Vectors [M, F], memory-mapped."""
        features: Features = self._load(FEATURES)
        return features

    @cached_property
    def labels(self) -> NDArray[np.int64] | None:
        """Class numbers [M] or [M, C], or None."""
        return self._load(LABELS) if self.has_labels else None

    @property
    def has_labels(self) -> bool:
        """Whether there are labels; does not read them."""
        return LABELS in self.files or (self.folder / LABELS).exists()

    def __len__(self) -> int:
        return int(self.origin.data["images"]) - len(self.unreadable)

    def image_of_row(self) -> NDArray[np.int64]:
        """Return the number of every row's image in the data, [M]."""
        return np.delete(np.arange(self.origin.data["images"]), [bad.index for bad in self.unreadable])

    def places(self) -> Iterator[str]:
        """Yield the place of every image: a path, or a name within an archive."""
        try:
            with (self.folder / PLACES).open() as lines:
                yield from (json.loads(line) for line in lines)
        except OSError as error:
            raise self.damaged(PLACES, str(error.strerror)) from None
        except ValueError:
            raise self.damaged(PLACES, "it is not one JSON string per line") from None

    def places_of(self, rows: set[int]) -> dict[int, str]:
        """Return the places of the images of some rows, by row."""
        return {row: place for row, place in enumerate(self.places()) if row in rows}

    def damage(self, name: str, *, everything: bool = False) -> str | None:
        """Return how a file differs from what was written; None if it does not, or if there is no digest."""
        if name not in self.files:
            return None
        return damage_of(self.folder / name, self.files[name], everything=everything)

    def check(self, name: str, *, everything: bool = False) -> None:
        """Raise if the bytes, the shape or the values of a file are wrong.

        Args:
            name: The name of the file.
            everything: Read large files completely, not a sample.
        """
        if (found := self.damage(name, everything=everything)) is not None:
            raise self.damaged(name, found)
        if name == FEATURES:
            self._check_features()
        elif name == LABELS and self.labels is not None:
            self._check_labels(self.labels, everything=everything)
        elif name == PLACES and (everything or not self.files):
            count = sum(isinstance(place, str) for place in self.places())
            if count != len(self):
                raise self.damaged(name, f"it names {count:,} images, expected {len(self):,}")

    def damaged(self, name: str, what: str) -> DataError:
        """Return the error for a damaged file of the store."""
        return DataError(f"{self.folder / name} is damaged: {what}. Delete {self.folder} and embed again.")

    def _check_features(self) -> None:
        found = self.features
        if found.ndim != 2 or found.dtype != np.float32 or len(found) != len(self):
            raise self.damaged(FEATURES, f"it holds {_kind(found)}, expected {len(self):,}×F float32")

    def _check_labels(self, found: NDArray[Any], *, everything: bool) -> None:
        rows, width = len(self), len(self.classes)
        fits = found.ndim == 1 or (found.ndim == 2 and (not width or found.shape[1] == width))
        if not fits or found.dtype.kind not in "biu" or len(found) != rows:
            expected = f"{rows:,} or {rows:,}×{width or 'C'} whole numbers"
            raise self.damaged(LABELS, f"it holds {_kind(found)}, expected {expected}")
        if not found.size or (found.nbytes > _MANY and not everything):
            return
        least, most = int(found.min()), int(found.max())
        last = 1 if found.ndim == 2 else width - 1 if width else most
        if least < -1 or most > last:
            raise self.damaged(LABELS, f"its values are from {least} to {most}, expected -1 to {last}")

    def _load(self, name: str) -> Any:
        try:
            return np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a damaged header raises nearly anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"cannot read {self.folder / name}: {why}. Delete {self.folder} and embed again.") from None


def is_store(path: str | Path) -> bool:
    """Return whether a path is a complete store."""
    return (Path(path) / MANIFEST).is_file()


def open_store(folder: Path) -> Store:
    """Open a complete store and verify it: small files completely, large ones by their size and a sample."""
    store = read_manifest(folder)
    for name in store_files(store):
        store.check(name)
    return store


def store_files(store: Store) -> list[str]:
    """Return the files of a store, without its manifest."""
    return [FEATURES, *([LABELS] if store.has_labels else []), PLACES]


def read_manifest(folder: Path) -> Store:
    """Read `store.json` and no other file of a store."""

    def parse(found: dict[str, Any]) -> Store:
        origin = Origin(**found["origin"])
        origin.key()
        unreadable = [Unreadable(*bad) for bad in found["unreadable"]]
        rows = {bad.index for bad in unreadable}
        if len(rows) != len(unreadable) or not all(0 <= row < origin.data["images"] for row in rows):
            raise ValueError("the unreadable images are not among those of the data")
        return Store(folder, origin, tuple(found["classes"]), unreadable, found["files"])

    return _MANIFEST.read(folder, parse)


def write_manifest(store: Store) -> None:
    """Complete a store whose other files are on the disk."""
    content = {
        "origin": asdict(store.origin),
        "classes": list(store.classes),
        "unreadable": [[bad.index, bad.place, bad.reason] for bad in store.unreadable],
    }
    _MANIFEST.write(store.folder, content, store_files(store))


def check_store(folder: Path) -> Iterator[Checked]:
    """Verify every byte of a store, for `carp check`."""

    def read() -> tuple[bool, dict[str, Callable[[], object]]]:
        store = read_manifest(folder)
        return bool(store.files), {name: partial(store.check, name, everything=True) for name in store_files(store)}

    return judge_complete(folder / MANIFEST, read)


def _kind(array: NDArray[Any]) -> str:
    return f"{'×'.join(f'{n:,}' for n in array.shape)} {array.dtype}"


def transform_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences between two transforms, as text; a setting that is missing has its former value."""
    former = {"transform": 1, "interpolation": DEFAULT_INTERPOLATION}
    before, now = ({**former, **each} if "size" in each else dict(each) for each in (found, wanted))
    names = {"transform": "version"}
    return [
        f"{names.get(name, name)} {before.get(name)}{' of the transform' * (name in names)}, not {now.get(name)}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
