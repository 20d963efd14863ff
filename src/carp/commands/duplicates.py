"""`carp duplicates`: near-copies among images, for a person to look at before anything is touched."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.commands.labelled import FEATURES
from carp.commands.pictures import StoredImages, places_of
from carp.commands.stored import open_images, store_features
from carp.data.decode import size_of
from carp.data.identical import first_identical
from carp.data.source import Openable, Source, open_source
from carp.errors import ConfigError, DataError, UnreadableImageError
from carp.features.copies import Copies, find_copies
from carp.features.encoder import load
from carp.features.extract import Precision
from carp.features.store import Store, is_store, open_store
from carp.files import write_atomic
from carp.report.copies_page import CopiesFound, Group, Member, write_copies_page
from carp.training.display import Display

PAGE, LIST = "duplicates.html", "duplicates.json"


def duplicates(
    data: Openable,
    model: str | Path | None = None,
    *,
    out: str | Path = "duplicates",
    threshold: float | str = "auto",
    features: str | Path | None = None,
    size: int | None = None,
    resize: int | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    device: str = "auto",
    quiet: bool = True,
) -> CopiesFound:
    """Group the near-copies among images, and write them as a page and as JSON. Nothing is ever deleted.

    Args:
        data: Images of any kind (docs/data.md).
        model: A run folder, or weights: FILE or METHOD:FILE; not needed where `features` are stored.
        out: Folder for duplicates.html, duplicates.json, and the features unless they are elsewhere.
        threshold: Least similarity of copies, from 0 to 1; `auto` chooses it from the images (docs/search.md).
        features: Folder of the features of these images; filled if there are none yet.
        size: Side of the images in pixels; that of training if None.
        resize: What their shorter side is scaled to before the centre is cut.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images at a time.
        device: Where to run the encoder.
        quiet: Show no progress.
    """
    least, folder = _threshold(threshold), Path(out)
    if folder.is_file():
        raise DataError(f"{folder} is a file: give a folder with --out.")
    stored = Path(features) if features is not None else folder / FEATURES
    if model is None and not is_store(stored):
        raise ConfigError("--model is missing: give a run folder or weights, or stored --features of these images.")
    display = Display(quiet=quiet)
    if model is None:
        source = open_source(data)
        store = _opened(stored, source)
    else:
        source = open_images(data, model, display, root=None, download=False)
        encoder = load(model, size=size, resize=resize, device=device)
        store = store_features(encoder, source, stored, display, precision=precision, batch_size=batch_size)
    with display.counting("comparing bytes", len(store.features)) as progress:
        firsts = first_identical(source, store.image_of_row(), progress)
    with display.counting("comparing features", len(store.features)) as progress:
        copies = find_copies(store.features, least, firsts=firsts, progress=progress)
    images = StoredImages(store, source)
    found = CopiesFound(
        name=source.name,
        images=len(store.features),
        threshold=copies.threshold.value,
        reason=copies.threshold.reason,
        groups=_groups(copies, store, images, _identical(firsts)),
        unreadable=len(store.unreadable),
    )
    write_copies_page(folder / PAGE, found, lambda member: images.picture(member.row, member.place))
    write_atomic(folder / LIST, json.dumps(found.as_dict(), indent=1))
    return found


def _threshold(given: float | str) -> float | None:
    if given == "auto":
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise ConfigError(f"threshold must be auto or a similarity from 0 to 1, received {given}.")
    return value


def _opened(folder: Path, source: Source) -> Store:
    store = open_store(folder)
    if store.origin.data["fingerprint"] != source.fingerprint:
        name = store.origin.data["name"]
        raise DataError(f"{folder} holds the features of {name}, not of {source.name}: give --model to embed these.")
    return store


def _identical(firsts: NDArray[np.int64]) -> set[int]:
    """Rows that are the same to the byte as another."""
    again = np.flatnonzero(firsts != np.arange(len(firsts)))
    return {*again.tolist(), *firsts[again].tolist()}


def _groups(copies: Copies, store: Store, images: StoredImages, identical: set[int]) -> list[Group]:
    """Every group with the image to keep first."""
    places = places_of(store, {row for group in copies.groups for row in group})
    groups = []
    for rows in copies.groups:
        members = [_member(row, places[row], copies, images, identical) for row in rows]
        groups.append(Group(sorted(members, key=lambda m: (-m.width * m.height, -m.num_bytes, m.row))))
    return groups


def _member(row: int, place: str, copies: Copies, images: StoredImages, identical: set[int]) -> Member:
    width = height = num_bytes = 0
    try:
        stored = images.fetch(row, place)
        width, height = size_of(stored, place)
        num_bytes = len(stored) if isinstance(stored, bytes) else stored.nbytes
    except UnreadableImageError:  # it was readable when its features were extracted
        pass
    similarity = copies.similarity[row]
    return Member(row, place, min(similarity, 1.0), width, height, num_bytes, identical=row in identical)
