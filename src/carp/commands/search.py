"""`carp index` and `carp search`: the images that are most similar to others."""

import warnings
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image

from carp.commands.pictures import StoredImages, places_of
from carp.console.progress import Display
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import load
from carp.encoders.model_argument import split_weights
from carp.errors import CarpWarning, CheckpointError, ConfigError, DataError, UnreadableImageError
from carp.features.extract import Features, extract
from carp.features.store import Store, is_store, open_store
from carp.files.outputs import check_output_file, check_output_folder
from carp.images.decoding.decode import decode, read_file
from carp.images.open_source import open_source
from carp.images.source import Openable, is_collection
from carp.images.views.centre_crop import TRANSFORM
from carp.report.pages.search_page import Found, Match, check_sheet, write_sheet
from carp.report.pages.thumbnails import Picture, thumbnail
from carp.similarity.vector_index import VectorIndex, build_index, open_index, write_index

INDEX = "index"  # in the folder of the features, unless another is given
USUAL_K = 10
_MAX_ROWS = 50  # queries on a sheet


def index(
    features: str | Path, out: str | Path | None = None, *, kind: str = "auto", quiet: bool = True
) -> tuple[VectorIndex, Path]:
    """Make an index of stored features, and measure what it finds.

    Args:
        features: A folder of `carp embed`.
        out: Folder for the index; `index` in that of the features if None.
        kind: exact, ivf, hnsw; auto chooses by the number of images.
        quiet: Show no progress.

    Returns:
        The index, and its folder.
    """
    store = open_store(Path(features))
    folder = Path(out) if out is not None else Path(features) / INDEX
    check_output_folder(folder)
    with Display(quiet=quiet).counting("indexing", len(store.features)) as progress:
        made = build_index(store.features, kind, progress=progress)
    write_index(made, store, folder)
    return made, folder


def search(
    index: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    k: int | None = None,
    model: str | Path | None = None,
    sheet: str | Path | None = None,
    data: Openable | None = None,
    device: str = "auto",
) -> list[Found]:
    """Find the images of an index that are most similar to query images.

    Args:
        index: A folder of `carp index`, or of the features that it was made of.
        images: Image files, or folders of them.
        k: How many images for each query; ten (or all, if there are fewer) if None.
        model: The encoder that made the features, where it is not where it was then.
        sheet: A .png or .html file for a contact sheet.
        data: The images of the index, where they are not where they were; for the sheet.
        device: Where to run the encoder.
    """
    if sheet is not None:
        check_sheet(Path(sheet))
        check_output_file(sheet, "--sheet")
    vectors, store = open_index(_folder(Path(index)))
    if k is not None and not 1 <= k <= len(vectors):
        raise ConfigError(f"k must be from 1 to the {len(vectors):,} images of the index, received {k}.")
    encoder = encoder_of(store, model, device=device)
    names, queries = _embed(encoder, [images] if isinstance(images, str | Path) else images, store)
    similarities, rows = vectors.search(queries, k or min(USUAL_K, len(vectors)))
    places = places_of(store, {int(row) for row in rows.ravel()})
    found = [
        Found(name, [Match(float(s), places[int(r)], int(r)) for s, r in zip(*both, strict=True) if r >= 0])
        for name, *both in zip(names, similarities, rows, strict=True)
    ]
    if sheet is not None:
        _write_sheet(Path(sheet), found, StoredImages(store, data))
    return found


def _folder(given: Path) -> Path:
    """The folder of the index: what is given, or for the features that it was made of, the one inside."""
    return given / INDEX if is_store(given) else given


def encoder_of(store: Store, model: str | Path | None = None, *, device: str = "auto") -> Encoder:
    """The encoder that made a store, checked by its hash."""
    about, transform = store.origin.model, store.origin.transform
    path = model or about.get("path")
    if not path:
        raise ConfigError(f"{store.folder} does not say where its model {about['name']} is: give it with --model.")
    if not model and not split_weights(path)[1].exists():
        raise CheckpointError(f"the model {about['name']} is no longer at {path}: give it with --model.")
    encoder = load(
        path,
        about["branch"] or "teacher",
        layer=about["layer"],
        size=transform["size"],
        resize=transform["resize"],
        device=device,
    )
    if encoder.hash != about["hash"]:
        raise CheckpointError(
            f"{path} is not the model that made {store.folder} (its weights are {encoder.hash[:12]}, not "
            f"{about['hash'][:12]}): give {about['name']} with --model, or embed again."
        )
    if transform.get("transform", 1) != TRANSFORM:
        warnings.warn(
            f"the features in {store.folder} were made with another version of the image transform, so similarities to "
            "new images are slightly off: embed and index again to remove the difference.",
            CarpWarning,
            stacklevel=3,
        )
    return encoder


def _embed(encoder: Encoder, images: Sequence[str | Path], store: Store) -> tuple[list[str], Features]:
    """Names and features of the queries: images by name must be readable, those of a folder are left out if not."""
    if not images:
        raise DataError("there is nothing to search for: give an image or a folder.")
    precision = store.origin.transform["precision"]
    names, vectors = list[str](), list[Features]()
    for many, group in groupby(images, key=lambda image: Path(image).is_dir() or is_collection(Path(image))):
        if not many:
            files = [str(image) for image in group]
            names += files
            vectors.append(encoder.embed(files, precision=precision))
            continue
        for image in group:
            found = extract(
                encoder.module,
                source := open_source(image),
                size=encoder.size,
                device=encoder.device,
                precision=precision,
                resize=encoder.resize,
            )
            if note := found.note():
                warnings.warn(note, CarpWarning, stacklevel=3)
            names += [source.place(int(i)) for i in found.indices]
            vectors.append(found.features)
    return names, np.concatenate(vectors)


def _write_sheet(path: Path, found: list[Found], images: StoredImages) -> None:
    rows = []
    for one in found[:_MAX_ROWS]:
        matches = [
            Picture(
                images.picture(match.row, match.place),
                f"{rank}: {match.similarity:.3f}",
                (match.place,),
                file=match.place,
            )
            for rank, match in enumerate(one.matches, start=1)
        ]
        rows.append([Picture(_query(one.query), "query", (one.query,), first=True, file=one.query), *matches])
    queries = f"{len(found)} queries" if len(found) > 1 else "1 query"
    part = f", the first {_MAX_ROWS}" if len(found) > _MAX_ROWS else ""
    write_sheet(path, f"{queries}{part}: the most similar images", rows)


def _query(name: str) -> Image.Image | None:
    try:
        return thumbnail(decode(read_file(Path(name)), name))
    except UnreadableImageError:  # a member of an archive
        return None
