"""An index of feature vectors that finds the images most similar to a query, by cosine similarity, with faiss.

Shapes: M vectors, F features, Q queries, k neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError, DataError, nearest
from carp.features.extract import Features, Progress
from carp.similarity.faiss_library import load_faiss
from carp.similarity.vectors import parts, unit_length

Kind = Literal["exact", "ivf", "hnsw"]
KINDS: tuple[str, ...] = ("auto", *get_args(Kind))
MAX_EXACT, MAX_HNSW = 200_000, 500_000  # number of vectors up to which `auto` chooses these kinds
RECALL, NEIGHBOURS = 0.95, 10  # the settings of an approximate index are raised until its recall@10 is this
_QUERIES = 200  # vectors that recall is measured with
_LINKS, _BUILD_EFFORT, _MAX_EFFORT = 32, 100, 1024  # HNSW
_LISTS, _VECTORS_A_LIST = 4.0, 64  # IVF: lists per root of the number of vectors; how many of these it learns from


@dataclass(frozen=True)
class VectorIndex:
    """Vectors that can be searched."""

    kind: Kind
    settings: dict[str, int]
    recall: float
    """Share of the ten nearest neighbours that it finds, measured on some of its own vectors; 1 if exact."""
    faiss_index: Any

    def __len__(self) -> int:
        return int(self.faiss_index.ntotal)

    def search(self, queries: Features, k: int) -> tuple[Features, NDArray[np.int64]]:
        """Return similarities and rows of the most similar vectors, both [Q, k], best first.

        If an approximate index finds fewer, the remaining rows are −1.
        """
        if queries.ndim != 2 or queries.shape[1] != self.faiss_index.d:
            received = "×".join(str(n) for n in queries.shape)
            raise DataError(
                f"the index has vectors of {self.faiss_index.d} features, received queries of {received}. Use "
                "the same encoder for both."
            )
        if not 1 <= k <= len(self):
            raise ConfigError(f"k must be from 1 to {len(self):,}, the number of vectors in the index, received {k}.")
        similarities, rows = self.faiss_index.search(unit_length(queries, "the queries"), k)
        return similarities, rows


def build_index(
    features: Features, kind: str = "auto", *, progress: Progress = lambda _done, _all: None
) -> VectorIndex:
    """Build an index of features [M, F].

    Args:
        features: Normalised when they are added; may be memory-mapped.
        kind: `exact`, `ivf` (lists of similar vectors), `hnsw` (a graph of neighbours); `auto` chooses by M. The
            settings of the latter two are raised until 95% of the ten nearest neighbours are found.
        progress: Called with (vectors added, all).
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of index '{kind}'.{nearest(kind, KINDS)} Kinds: {', '.join(KINDS)}.")
    if kind == "auto":
        kind = "exact" if len(features) <= MAX_EXACT else "hnsw" if len(features) <= MAX_HNSW else "ivf"
    make: dict[str, Callable[[Features], Any]] = {"exact": _exact, "ivf": _ivf, "hnsw": _hnsw}
    index = make[kind](features)
    done = 0
    for part in parts(features):
        index.add(unit_length(part))
        done += len(part)
        progress(done, len(features))
    if kind == "exact":
        return VectorIndex("exact", {}, 1.0, index)
    name, most = ("nprobe", index.nlist) if kind == "ivf" else ("efSearch", _MAX_EFFORT)
    settings = {"nlist": index.nlist} if kind == "ivf" else {"links": _LINKS, "efConstruction": _BUILD_EFFORT}
    value, recall = _raise_until_found(index, features, name, most)
    return VectorIndex("ivf" if kind == "ivf" else "hnsw", {**settings, name: value}, recall, index)


def _exact(features: Features) -> Any:
    return load_faiss("an index").IndexFlatIP(features.shape[1])


def _hnsw(features: Features) -> Any:
    faiss = load_faiss("an index")
    index = faiss.IndexHNSWFlat(features.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_EFFORT
    return index


def _ivf(features: Features) -> Any:
    faiss = load_faiss("an index")
    num_lists = max(1, min(int(_LISTS * len(features) ** 0.5), len(features) // 2))
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(features.shape[1]), features.shape[1], num_lists, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.spherical = True
    index.cp.min_points_per_centroid = 1  # faiss warns on the terminal below 39
    index.train(unit_length(features[_evenly(len(features), _VECTORS_A_LIST * num_lists)]))
    return index


def _evenly(count: int, wanted: int) -> NDArray[np.int64]:
    """Return evenly spaced rows: deterministic, and from all folders of the images."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(np.int64))


def _raise_until_found(index: Any, features: Features, name: str, most: int) -> tuple[int, float]:
    """Double a setting until enough of the true neighbours are found; returns it and the recall."""
    queries = unit_length(features[_evenly(len(features), _QUERIES)])
    k = min(NEIGHBOURS + 1, len(features))  # the first is the query itself
    worst = _exact_similarities(features, queries, k)[:, -1]
    value, recall = 1 if name == "nprobe" else 16, 0.0
    target = index if name == "nprobe" else index.hnsw
    while True:
        setattr(target, name, value)
        found = index.search(queries, k)[0]
        # A neighbour as similar as the last one is as good: copies have no order
        hits = (found >= worst[:, None] - 1e-5).sum(axis=1).clip(1, k)
        recall = float((hits - 1).mean() / max(1, k - 1))
        if recall >= RECALL or value >= most:
            return value, recall
        value = min(2 * value, most)


def _exact_similarities(features: Features, queries: Features, k: int) -> Features:
    """Return the k highest similarities of every query, [Q, k], without an index of all vectors."""
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for part in parts(features):
        both = np.concatenate([best, queries @ unit_length(part).T], axis=1)
        best = np.sort(np.partition(both, -k, axis=1)[:, -k:], axis=1)[:, ::-1]
    return best
