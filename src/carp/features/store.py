"""Features on disk: extracted once, then read by any number of protocols.

A store is a folder:

    features.npy    vectors [M, F], float32, memory-mapped when opened
    labels.npy      class numbers [M], or [M, C] where an image has several labels; absent without labels
    places.jsonl    where every image lies, a JSON string a line
    store.json      what made the features, the names of the classes, the images that could not be read

`store.json` is written last, so a folder that has it is whole. While features are extracted they are appended to a part
file (one a process under torchrun) beside a note of how far it is whole; the same call continues there, in the same
batches, so that the bits are those of an extraction never interrupted.

Shapes: M images that can be read, F features, C classes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp import distributed
from carp.data.part import Part
from carp.data.quarantine import Unreadable, nothing_to_read
from carp.data.source import Source
from carp.errors import DataError
from carp.features.extract import FeatureBatch, Features, Progress
from carp.features.part_file import PartFile, join_parts
from carp.files import write_atomic

SCHEMA = 1
_MANIFEST, _FEATURES, _LABELS, _PLACES = "store.json", "features.npy", "labels.npy", "places.jsonl"

Encode = Callable[[Source], Iterator[FeatureBatch]]


@dataclass(frozen=True)
class Origin:
    """What made features: equal origins give equal features."""

    model: dict[str, Any]
    """`name`, `hash` of the weights, `branch`, `layer`, maybe `epochs`, and the `path` that it was loaded from."""
    transform: dict[str, Any]
    data: dict[str, Any]
    """`name`, `fingerprint`, `images`."""

    def key(self) -> str:
        """A hash of all that features depend on; names do not count."""
        parts = (self.model["hash"], self.model["layer"], self.transform, self.data["fingerprint"], self.data["images"])
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """An opened store."""

    folder: Path
    origin: Origin
    classes: tuple[str, ...]
    unreadable: list[Unreadable]

    @cached_property
    def features(self) -> Features:
        """Vectors [M, F], memory-mapped."""
        features: Features = self._load(_FEATURES)
        return features

    @cached_property
    def labels(self) -> NDArray[np.int64] | None:
        """Class numbers [M] or [M, C], or None."""
        return self._load(_LABELS) if (self.folder / _LABELS).exists() else None

    def image_of_row(self) -> NDArray[np.int64]:
        """The number of every row's image in the data, [M]."""
        return np.delete(np.arange(self.origin.data["images"]), [bad.index for bad in self.unreadable])

    def places(self) -> Iterator[str]:
        """Where every image lies."""
        with (self.folder / _PLACES).open() as lines:
            yield from (json.loads(line) for line in lines)

    def _load(self, name: str) -> Any:
        try:
            return np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"cannot read {self.folder / name}: {error}. Delete {self.folder} and embed again."
            ) from None


def is_store(path: str | Path) -> bool:
    """Whether a path is a store that is whole."""
    return (Path(path) / _MANIFEST).is_file()


def open_store(folder: Path) -> Store:
    """Open a store that is whole."""
    path = folder / _MANIFEST
    try:
        read = json.loads(path.read_text())
        if read["schema"] != SCHEMA:
            raise DataError(f"{path} has schema {read['schema']!r}, and this CARP reads {SCHEMA}: embed again.")
        origin = Origin(**read["origin"])
        unreadable = [Unreadable(*bad) for bad in read["unreadable"]]
        return Store(folder, origin, tuple(read["classes"]), unreadable)
    except OSError as error:
        raise DataError(
            f"{folder} holds no features ({path.name}: {error.strerror}). Run `carp embed` first."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}). Delete {folder} and embed again.") from None


def fill_store(
    folder: Path,
    origin: Origin,
    source: Source,
    encode: Encode,
    *,
    batch_size: int,
    progress: Progress = lambda _done, _all: None,
) -> Store:
    """Extract the features of a source into a folder, continue where that was interrupted, or open what is there.

    Args:
        folder: The store; refused if it holds the features of something else.
        origin: What makes the features.
        source: The images.
        encode: Batches of features of (a part of) the source.
        batch_size: Of `encode`, so that it continues between two batches.
        progress: Called with (images done, all).
    """
    if not is_store(folder):
        try:
            _extract(folder, origin, source, encode, batch_size, progress)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"cannot write features to {folder}: {reason}. Mend that; what is done is kept.") from error
    store = open_store(folder)
    if store.origin.key() != origin.key():
        raise DataError(f"{folder} holds other features: {_difference(store.origin, origin)}. Give another folder.")
    return store


def _extract(folder: Path, origin: Origin, source: Source, encode: Encode, batch_size: int, progress: Progress) -> None:
    """This process's share of the images, then, by the first process, the joining of all shares."""
    _refuse_other_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(folder, origin, len(source), batch_size)
    part = parts[distributed.rank()]
    with part.opened():
        first = part.done  # of what is left to do
        if first < part.stop:
            whole = (first, part.stop) == (0, len(source))
            for batch in encode(source if whole else Part(source, np.arange(first, part.stop))):
                part.append(batch, first)
                progress(part.done - part.start, part.stop - part.start)
        part.note()
    distributed.barrier()
    if distributed.rank() == 0:
        for other in parts[1:]:
            other.read_note()
        _finish(folder, origin, source, parts)
    distributed.barrier()


def _parts(folder: Path, origin: Origin, num_images: int, batch_size: int) -> list[PartFile]:
    """Every process's share: whole batches, so that any number of processes gives the same bits."""
    world = distributed.world_size()
    shares = [distributed.share(-(-num_images // batch_size), rank) for rank in range(world)]
    return [
        PartFile(
            folder / f"part-{rank}-of-{world}.bin",
            origin.key(),
            min(first * batch_size, num_images),
            min(last * batch_size, num_images),
        )
        for rank, (first, last) in enumerate(shares)
    ]


def _finish(folder: Path, origin: Origin, source: Source, parts: list[PartFile]) -> None:
    """Make the store of all parts."""
    unreadable = [bad for part in parts for bad in part.unreadable]
    readable = np.ones(len(source), dtype=np.bool_)
    readable[[bad.index for bad in unreadable]] = False
    if not readable.any():
        for part in parts:
            part.remove()
        raise nothing_to_read(source.name, unreadable)
    if source.labels is not None:
        np.save(folder / _LABELS, source.labels[readable])
    with (folder / _PLACES).open("w") as lines:
        lines.writelines(json.dumps(source.place(int(index))) + "\n" for index in np.flatnonzero(readable))
    join_parts(parts, folder / _FEATURES)
    manifest = {
        "schema": SCHEMA,
        "origin": asdict(origin),
        "classes": list(source.classes),
        "unreadable": [[bad.index, bad.place, bad.reason] for bad in unreadable],
    }
    write_atomic(folder / _MANIFEST, json.dumps(manifest, indent=1))
    for part in parts:
        part.remove()


def _refuse_other_files(folder: Path) -> None:
    if folder.is_file():
        raise DataError(f"{folder} is a file: give a folder for the features.")
    known = {_FEATURES, _LABELS, _PLACES}
    others = (
        [p.name for p in folder.iterdir() if p.name not in known and "part-" not in p.name] if folder.is_dir() else []
    )
    if others:
        raise DataError(f"{folder} holds other files ({others[0]}): give an empty or a new folder for the features.")


def _difference(found: Origin, wanted: Origin) -> str:
    """Everything that differs, in words."""
    parts = []
    if found.model["hash"] != wanted.model["hash"] or found.model["layer"] != wanted.model["layer"]:
        before, now = _model(found), _model(wanted)
        if before == now:  # a run that went on, a file of the same name
            before, now = (f"{name}, weights {o.model['hash'][:8]}" for name, o in ((before, found), (now, wanted)))
        parts.append(f"of {before}, not {now}")
    if found.data["fingerprint"] != wanted.data["fingerprint"]:
        before, now = (f"{origin.data['images']:,} images {origin.data['name']}" for origin in (found, wanted))
        parts.append(f"of other contents of the {before}" if before == now else f"of the {before}, not the {now}")
    parts += [
        f"with {name} {value}, not {wanted.transform.get(name)}"
        for name, value in found.transform.items()
        if wanted.transform.get(name) != value
    ]
    return "; ".join(parts) or "of a changed data set"


def _model(origin: Origin) -> str:
    return f"{origin.model['name']} ({origin.model['branch'] or 'weights'}, layer {origin.model['layer']})"
