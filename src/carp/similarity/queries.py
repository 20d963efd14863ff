"""Names and features of query images."""

import warnings
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from carp.encoders.frozen_encoder import Encoder
from carp.errors import CarpWarning, DataError
from carp.features.extract import Features, extract
from carp.features.feature_options import Precision
from carp.images.open_source import open_source
from carp.images.source import is_collection


def check_queries(images: object) -> list[str | Path]:
    """Return the paths of query images as a list, whether one or several were given."""
    given = [images] if isinstance(images, str | Path) or not isinstance(images, Iterable) else list(images)
    if not given:
        raise DataError("there is nothing to search for: received an empty list. Give an image or a folder.")
    paths = [image for image in given if isinstance(image, str | Path)]
    if len(paths) < len(given):
        wrong = next(image for image in given if not isinstance(image, str | Path))
        raise DataError(
            f"a query must be the path of an image or a folder, received {type(wrong).__name__}. Save the image to a "
            "file and give its path."
        )
    return paths


def embed_queries(encoder: Encoder, images: Sequence[str | Path], precision: Precision) -> tuple[list[str], Features]:
    """Return the names and features [Q, F] of images, in the given order.

    An unreadable image that was named is an error; unreadable images of a folder are left out, with a warning.
    """
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
                interpolation=encoder.interpolation,
            )
            if note := found.note():
                warnings.warn(note, CarpWarning, stacklevel=4)
            names += [source.place(int(i)) for i in found.indices]
            vectors.append(found.features)
    return names, np.concatenate(vectors)
