"""The images whose labels are known: which of them are among the images at hand, and which are others.

Shapes: M images, L labelled images, F features.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.features.store import Store
from carp.images.labels import single_labels
from carp.images.source import Source
from carp.images.sources.subset import Subset


@dataclass(frozen=True)
class KnownLabels:
    """Labelled images: rows of the store, and others that are not among its images."""

    rows: NDArray[np.int64]
    """Of the store."""
    labels: NDArray[np.int64]
    """The classes of these rows."""
    classes: tuple[str, ...]
    others: Subset | None
    """Labelled images that are not in the store; None if there are none."""


def known_labels(labelled: Source, source: Source, store: Store) -> KnownLabels:
    """Match labelled images with those of a store: by their path, or by their name within the data.

    Args:
        labelled: A list of paths with labels, or a folder with a sub-folder per class.
        source: The images of the store.
        store: Their features.
    """
    classes = single_labels(labelled, "carp label")
    if len(labelled.classes) < 2:
        raise DataError(f"{labelled.name} has only one class: give labels of at least two classes.")
    row_of_image = {int(image): row for row, image in enumerate(store.image_of_row())}
    by_path = {_path(place): row for row, place in enumerate(store.places())}
    by_name = {source.short_name(image): row for image, row in row_of_image.items()}
    rows, own, others = list[int](), list[int](), list[int]()
    for index in range(len(labelled)):
        row = by_path.get(_path(labelled.place(index)), by_name.get(labelled.short_name(index)))
        if row is None:
            others.append(index)
        else:
            rows.append(row)
            own.append(index)
    if len(set(rows)) < len(rows):
        twice = next(row for row in rows if rows.count(row) > 1)
        name = next(place for row, place in enumerate(store.places()) if row == twice)
        raise DataError(f"{labelled.name} names {name} more than once. Give every image one label.")
    unread = [index for index in others if not _exists(labelled, index)]
    if unread:
        raise DataError(
            f"{len(unread):,} of the {len(labelled):,} images of {labelled.name} are neither in {source.name} nor "
            f"files, the first is '{labelled.short_name(unread[0])}'. Correct the names."
        )
    return KnownLabels(
        np.array(rows, dtype=np.int64),
        classes[np.array(own, dtype=np.int64)],
        labelled.classes,
        Subset(labelled, np.array(others, dtype=np.int64)) if others else None,
    )


def _path(place: str) -> str:
    return os.path.realpath(place)  # also where the file does not exist


def _exists(labelled: Source, index: int) -> bool:
    place = Path(labelled.place(index))
    return place.is_file() or not place.is_absolute() or not place.suffix  # a member of an archive has no path
