"""`carp duplicates`: near-copies among images, for a person to look at before anything is touched."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.commands.pictures import StoredImages, places_of
from carp.console.progress import Display
from carp.encoders.load import load_encoder
from carp.encoders.take_features import open_images, take_features
from carp.errors import ConfigError, DataError, UnreadableImageError
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.store import Store, is_store, open_store
from carp.files.atomic import write_atomic
from carp.files.outputs import check_output_folder
from carp.images.decoding.decode import decode, has_camera_data, size_of
from carp.images.inspect.identical import first_identical
from carp.images.open_source import open_source
from carp.images.source import Openable, Source
from carp.report.pages.copies_page import CopiesFound, Group, Member, write_copies_page
from carp.report.pages.remove_list import check_remove_list, write_remove_list
from carp.similarity.look_alike import Look, agreement, look_at
from carp.similarity.near_copies import Copies, find_copies
from carp.similarity.original import Evidence, original

PAGE, LIST = "duplicates.html", "duplicates.json"
FEATURES = "features"  # sub-folder


def duplicates(
    data: Openable,
    model: str | Path | None = None,
    *,
    out: str | Path = "duplicates",
    threshold: float | str = "auto",
    features: str | Path | None = None,
    branch: str = "teacher",
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    remove_list: str | Path | None = None,
    quiet: bool = True,
) -> CopiesFound:
    """Group the near-copies among images, and write them as a page and as JSON. Nothing is ever deleted.

    Args:
        data: Images of any kind (docs/data.md).
        model: A run folder, or weights: FILE or METHOD:FILE. None if `features` are stored already.
        out: Folder for duplicates.html, duplicates.json, and the features unless `features` is given.
        threshold: Minimum similarity of copies, from 0 to 1; `auto` chooses it from the images (docs/search.md).
        features: Folder of the features of these images; they are extracted into it if it has none yet.
        branch: Encoder of a run: `teacher` or `student`.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images per batch.
        root: Folder of torchvision's data sets.
        download: Let torchvision download missing data sets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        remove_list: A .txt, .nul or .csv file that lists the files to remove if one image of every group is kept.
        quiet: Show no progress.

    Returns:
        The groups, the most certain first, and the threshold that was used.
    """
    options = FeatureOptions(
        layer=layer,
        size=size,
        resize=resize,
        precision=precision,
        batch_size=batch_size,
        root=root,
        download=download,
        device=device,
    )
    if remove_list is not None:
        check_remove_list(Path(remove_list))
    least, folder = _threshold(threshold), Path(out)
    check_output_folder(folder)
    stored = Path(features) if features is not None else folder / FEATURES
    if model is None and not is_store(stored):
        raise ConfigError("--model is missing: give a run folder or weights, or stored --features of these images.")
    display = Display(quiet=quiet)
    if model is None:
        source = open_source(data, root=root, download=download)
        store = _opened(stored, source)
    else:
        source = open_images(data, model, options, display)
        encoder = load_encoder(model, branch, options)
        store = take_features(encoder, source, stored, options, display)
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
        groups=_groups(copies, store, images, firsts),
        unreadable=len(store.unreadable),
    )
    write_copies_page(folder / PAGE, found, lambda member: images.picture(member.row, member.place))
    write_atomic(folder / LIST, json.dumps(found.as_dict(), indent=1))
    if remove_list is not None:
        _write(Path(remove_list), found)
    return found


def _write(path: Path, found: CopiesFound) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_remove_list(path, found)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another --remove-list.") from error


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


def _groups(copies: Copies, store: Store, images: StoredImages, firsts: NDArray[np.int64]) -> list[Group]:
    """Groups with the image to keep first; the most certain ones first: identical files, then by their pixels."""
    places = places_of(store, {row for group in copies.groups for row in group})
    identical = _identical(firsts)
    groups = []
    for rows in copies.groups:
        seen = [_see(row, places[row], images) for row in rows]
        members = [
            Member(
                row,
                places[row],
                min(copies.similarity[row], 1.0),
                *one.size,
                one.evidence.num_bytes,
                identical=row in identical,
                digest=int(firsts[row]),
            )
            for row, one in zip(rows, seen, strict=True)
        ]
        keep = original([one.evidence for one in seen])
        others = [member for number, member in enumerate(members) if number != keep]
        others.sort(key=lambda m: (-m.width * m.height, -m.num_bytes, m.row))
        looks = [one.look for one in seen if one.look is not None]
        groups.append(Group([members[keep], *others], agreement(looks) if len(looks) == len(seen) else -1.0))
    return sorted(groups, key=lambda g: (not g.is_identical, -g.agreement, g.members[0].row))


@dataclass(frozen=True)
class _Seen:
    """What a look at an image shows; nothing if it cannot be read any more."""

    size: tuple[int, int]
    look: Look | None
    evidence: Evidence


def _see(row: int, place: str, images: StoredImages) -> _Seen:
    path = Path(place)
    modified = path.stat().st_mtime if path.is_file() else None
    try:
        stored = images.fetch(row, place)
        look, size = look_at(decode(stored, place)), size_of(stored, place)
    except UnreadableImageError:  # it was readable when its features were extracted
        return _Seen((0, 0), None, Evidence(0, False, modified, path.name, 0))
    num_bytes = len(stored) if isinstance(stored, bytes) else stored.nbytes
    pixels = look.inner[0] * look.inner[1]
    return _Seen(size, look, Evidence(pixels, has_camera_data(stored), modified, path.name, num_bytes))
