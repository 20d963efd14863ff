"""Vectors of unit length, a few at a time. Shapes: M vectors, F features."""

from collections.abc import Iterator

import numpy as np

from carp.errors import DataError
from carp.features.extract import Features

_BYTES_AT_A_TIME = 2**26


def unit_length(vectors: Features, what: str = "the features") -> Features:
    """Divide vectors [M, F] by their lengths; a vector of zeros stays as it is."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.sqrt(np.einsum("mf,mf->m", vectors, vectors))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise DataError(
            f"row {row} of {what} contains values that are not finite. Embed the images again with another encoder."
        )
    scaled: Features = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)[:, None]
    return scaled


def parts(features: Features) -> Iterator[Features]:
    """Yield consecutive rows, at most 64 MB at a time."""
    rows = max(1, _BYTES_AT_A_TIME // (4 * features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows]
