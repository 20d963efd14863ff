"""Fill a feature store: extraction that resumes after a kill, on any number of processes.

Each process appends features to a part file (`part_file.py`). The same call resumes there, in the same batches, so that
the result equals that of an uninterrupted extraction, bit for bit. When all parts are complete, the first process
writes labels and places, joins the parts, renames the result to `features.npy` and writes `store.json`; only then are
the parts' notes removed. A process that is killed at any of these points leaves a folder that the same call completes.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from carp.compute import distributed
from carp.errors import DataError
from carp.features.extract import FeatureBatch, Progress
from carp.features.part_file import PartFile, is_part, join_parts
from carp.features.store import (
    FEATURES,
    LABELS,
    PLACES,
    Origin,
    Store,
    is_store,
    open_store,
    transform_differences,
    write_manifest,
)
from carp.files.atomic import remove, replacing
from carp.images.identity import is_same_data
from carp.images.loading.quarantine import nothing_to_read
from carp.images.source import Source
from carp.images.sources.subset import Subset

Encode = Callable[[Source], Iterator[FeatureBatch]]


def fill_store(
    folder: Path,
    origin: Origin,
    source: Source,
    encode: Encode,
    *,
    batch_size: int,
    progress: Progress = lambda _done, _all: None,
) -> Store:
    """Extract the features of a source into a folder, resume an interrupted extraction, or open a complete one.

    Args:
        folder: The store; if it holds other features, an error is raised.
        origin: Model, transform and data.
        source: The images.
        encode: Yields batches of features of the source, or of a part of it.
        batch_size: The batch size of `encode`, so that extraction resumes between two batches.
        progress: Called with (images done, all).
    """
    if not is_store(folder):
        try:
            _extract(folder, origin, source, encode, batch_size, progress)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(
                f"cannot write features to {folder}: {reason}. Fix this and rerun; finished batches are kept."
            ) from error
    store = open_store(folder)
    if not store.origin.matches(origin):
        raise DataError(
            f"{folder} contains other features: {_difference(store.origin, origin)}. Give another folder with --out."
        )
    if distributed.rank() == 0:
        _remove_parts(folder)  # left by a process that was killed after it had written the manifest
    return store


def _extract(folder: Path, origin: Origin, source: Source, encode: Encode, batch_size: int, progress: Progress) -> None:
    """Extract this process's share of the images; the first process then joins all shares."""
    _refuse_other_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(folder, origin, len(source), batch_size)
    part = parts[distributed.rank()]
    with part.opened():
        if is_store(folder):
            raise DataError(f"another process has just completed {folder}. Run the same command again.")
        first = part.done  # the first image that is left
        if first < part.stop:
            whole = (first, part.stop) == (0, len(source))
            for batch in encode(source if whole else Subset(source, np.arange(first, part.stop))):
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
    """Return the share of every process, in whole batches, so that any number of processes gives the same bits."""
    world = distributed.world_size()
    shares = [distributed.share(-(-num_images // batch_size), rank) for rank in range(world)]
    return [
        PartFile(
            folder / f"part-{rank}-of-{world}.bin",
            origin.key(),
            min(first * batch_size, num_images),
            min(last * batch_size, num_images),
            becomes=folder / FEATURES if rank == 0 else None,
        )
        for rank, (first, last) in enumerate(shares)
    ]


def _finish(folder: Path, origin: Origin, source: Source, parts: list[PartFile]) -> None:
    """Complete the store from all parts. Until the manifest is written, everything in the folder can be redone."""
    unreadable = [bad for part in parts for bad in part.unreadable]
    readable = np.ones(len(source), dtype=np.bool_)
    readable[[bad.index for bad in unreadable]] = False
    for name in (LABELS, PLACES):  # left by an attempt with other images
        remove(folder / name)
    if not readable.any():
        remove(folder / FEATURES)
        _remove_parts(folder)
        raise nothing_to_read(source.name, unreadable)
    if source.labels is not None:
        with replacing(folder / LABELS) as beside:
            np.save(beside, np.asarray(source.labels[readable], dtype=np.int64))
    with replacing(folder / PLACES) as beside, beside.open("w") as lines:
        lines.writelines(json.dumps(source.place(int(index))) + "\n" for index in np.flatnonzero(readable))
    join_parts(parts, folder / FEATURES)
    write_manifest(Store(folder, origin, tuple(source.classes), unreadable))


def _remove_parts(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if is_part(path):
            remove(path)


def _refuse_other_files(folder: Path) -> None:
    """Raise if the folder holds files that an interrupted extraction does not leave behind."""
    if folder.is_file():
        raise DataError(f"{folder} is a file. Give a folder for the features.")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    ours = {FEATURES, LABELS, PLACES} if any(map(is_part, found)) else set()
    others = [path.name for path in found if path.name not in ours and not is_part(path)]
    if others:
        raise DataError(f"{folder} contains other files ({others[0]}). Give an empty or a new folder for the features.")


def _difference(found: Origin, wanted: Origin) -> str:
    """Return every difference, as text."""
    parts = []
    if found.model["hash"] != wanted.model["hash"] or found.model["layer"] != wanted.model["layer"]:
        before, now = _model(found), _model(wanted)
        if before == now:  # a run that was resumed, or another file of the same name
            before, now = (f"{name}, weights {o.model['hash'][:8]}" for name, o in ((before, found), (now, wanted)))
        parts.append(f"of {before}, not {now}")
    if not is_same_data(found.data, wanted.data):
        before, now = (f"{origin.data['images']:,} images {origin.data['name']}" for origin in (found, wanted))
        parts.append(f"of the {before}, which have changed" if before == now else f"of the {before}, not the {now}")
    parts += [f"with {difference}" for difference in transform_differences(found.transform, wanted.transform)]
    return "; ".join(parts) or "of a changed dataset"


def _model(origin: Origin) -> str:
    model = origin.model
    epoch = f"@{model['epoch']}" if "epoch" in model else ""
    return f"{model['name']}{epoch} ({model['branch'] or 'weights'}, layer {model['layer']})"
