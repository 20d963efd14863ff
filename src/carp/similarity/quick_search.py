"""The nearest neighbours of one image among a million, in a fraction of 100 ms.

All vectors are scanned in 16 bits, and the best of that scan are compared again in full precision. A cosine in 16 bits
is off by at most `_ERROR`, so whatever falls short of the k-th best by twice that much cannot be among the k nearest:
the result is exact. Where all features together exceed `NUMBERS`, the scan is over as many principal components
as fit, the result is no longer certain, and its recall is measured.

Shapes: M vectors, F features, D dimensions that are scanned.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.features.extract import Features
from carp.features.principal_axes import principal_axes
from carp.random import Purpose, key
from carp.similarity.faiss_library import load_faiss
from carp.similarity.vectors import parts, unit_length

NUMBERS = 2**28  # in the scan: 512 MB
_ERROR = 6e-4  # 2⁻¹¹ per component of a vector of length 1, and the rounding of sums
_CANDIDATES, _MORE = 4, 64  # per neighbour, and in all
_PROJECTED_CANDIDATES = 1000
_AXES_FROM = 20_000  # vectors that principal axes are learned from
_QUERIES, _NEIGHBOURS = 40, 10  # that recall is measured with


class QuickSearch:
    """Finds the vectors with the largest cosine."""

    def __init__(self, features: Features, *, numbers: int = NUMBERS) -> None:
        """Scan features [M, F], which may be memory-mapped, in at most so many numbers."""
        self._features = features
        dimensions = max(1, numbers // len(features))
        self._axes = None if dimensions >= features.shape[1] else _axes(features, dimensions)
        faiss = load_faiss("the explorer")
        width = features.shape[1] if self._axes is None else self._axes.shape[1]
        self._scan = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        for part in parts(features):
            self._scan.add(self._projected(unit_length(part)))

    @property
    def is_exact(self) -> bool:
        """Whether the neighbours are certain."""
        return self._axes is None

    @cached_property
    def recall(self) -> float:
        """The share of the ten nearest neighbours that are found, for a few of the vectors."""
        if self.is_exact:
            return 1.0
        order = np.argsort(key(0, Purpose.BANK, np.arange(len(self._features))), kind="stable")
        queries = unit_length(self._features[order[:_QUERIES]])
        k = min(_NEIGHBOURS, len(self._features))
        exact = load_faiss("the explorer").IndexFlatIP(queries.shape[1])
        best = np.full((len(queries), 0), -2.0, dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        start = 0
        for part in parts(self._features):
            exact.reset()
            exact.add(unit_length(part))
            cosines, found = exact.search(queries, min(k, len(part)))
            best, rows = np.hstack([best, cosines]), np.hstack([rows, found + start])
            start += len(part)
        true = np.take_along_axis(rows, np.argsort(-best, axis=1)[:, :k], axis=1)
        ours = [self.nearest(query, k)[1] for query in queries]
        return float(np.mean([np.isin(mine, each).mean() for mine, each in zip(ours, true, strict=True)]))

    def nearest(self, vector: Features, k: int) -> tuple[Features, NDArray[np.int64]]:
        """Cosines and rows of the k nearest vectors of one [F], best first, both [k]."""
        if vector.shape != self._features.shape[1:]:
            raise DataError(
                f"the features have {self._features.shape[1]} numbers per image, received {vector.size}. Use the same "
                "encoder for both."
            )
        k = min(k, len(self._features))
        query = unit_length(vector[None], "the image")
        rows = self._candidates(self._projected(query), k)
        cosines = unit_length(self._features[rows]) @ query[0]
        order = np.lexsort((rows, -cosines))[:k]
        return cosines[order], rows[order]

    def _candidates(self, query: Features, k: int) -> NDArray[np.int64]:
        """Rows that may be among the k nearest, in ascending order; all that are, if the search is exact."""
        wanted = max(_CANDIDATES * k + _MORE, 0 if self.is_exact else _PROJECTED_CANDIDATES)
        while True:
            similarity, rows = self._scan.search(query, min(wanted, len(self._features)))
            enough = similarity[0, -1] < similarity[0, k - 1] - 2 * _ERROR or wanted >= len(self._features)
            if enough or not self.is_exact:
                return np.sort(rows[0])
            wanted *= _MORE  # many vectors are nearly equal

    def _projected(self, vectors: Features) -> Features:
        return vectors if self._axes is None else np.ascontiguousarray(vectors @ self._axes)


def _axes(features: Features, dimensions: int) -> Features:
    """The first principal axes [F, D] of some vectors of unit length; not centred, as cosines are not."""
    order = np.argsort(key(0, Purpose.BANK, np.arange(len(features))), kind="stable")
    some = unit_length(features[np.sort(order[:_AXES_FROM])])
    _, axes = principal_axes(some.T @ some / len(some))
    return np.ascontiguousarray(axes[:, -dimensions:], dtype=np.float32)
