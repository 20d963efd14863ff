"""`carp search`: the images of an index that are most similar to query images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from carp.encoders.load import encoder_of
from carp.errors import ConfigError, received
from carp.features.store import is_store
from carp.features.stored_images import StoredImages
from carp.files.outputs import check_output_file
from carp.images.source import Openable
from carp.report.pages.search_page import check_sheet, write_search_sheet
from carp.runs.epoch_argument import at_epoch
from carp.similarity.faiss_library import load_faiss
from carp.similarity.index_folder import index_in, open_index
from carp.similarity.matches import Found, Match
from carp.similarity.queries import check_queries, embed_queries

DEFAULT_K = 10


def search(
    index: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    k: int | None = None,
    model: str | Path | None = None,
    epoch: int | None = None,
    sheet: str | Path | None = None,
    data: Openable | None = None,
    device: str = "auto",
) -> list[Found]:
    """Find the images of an index that are most similar to query images.

    Args:
        index: A folder of `carp index`, or the folder of the features that has one inside.
        images: Image files, or folders of images.
        k: Number of images to find for each query. None is 10, or all if there are fewer.
        model: The encoder that extracted the features, if it has been moved.
        epoch: The epoch of the run that is given as `model`. None is the epoch that the features were extracted with.
        sheet: A .png or .html file for a contact sheet.
        data: The indexed images, if they have been moved; used for the sheet.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.

    Returns:
        One entry per query image, with its matches, best first.
    """
    if sheet is not None:
        check_sheet(Path(sheet))
        check_output_file(sheet, "--sheet")
    queries = check_queries(images)
    load_faiss("a search")  # before the encoder is loaded
    folder = index_in(Path(index)) if is_store(index) else Path(index)
    vectors, store = open_index(folder)
    if k is not None and not (isinstance(k, int | np.integer) and 1 <= k <= len(vectors)):
        raise ConfigError(
            f"k must be from 1 to {len(vectors):,}, the number of images in the index, received {received(k)}."
        )
    encoder = encoder_of(store, at_epoch(model, epoch), device=device)
    names, features = embed_queries(encoder, queries, store.origin.transform["precision"])
    similarities, rows = vectors.search(features, int(k or min(DEFAULT_K, len(vectors))))
    places = store.places_of({int(row) for row in rows.ravel()})
    found = [
        Found(name, [Match(float(s), places[int(r)], int(r)) for s, r in zip(*both, strict=True) if r >= 0])
        for name, *both in zip(names, similarities, rows, strict=True)
    ]
    if sheet is not None:
        write_search_sheet(Path(sheet), found, StoredImages(store, data))
    return found
