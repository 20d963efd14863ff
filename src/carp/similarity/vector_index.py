"""An index over stored features: which images are most similar to a query (cosine), by faiss.

An index is a folder:

    vectors.faiss   the vectors, of unit length, as faiss keeps them
    index.json      kind, settings, measured recall, which store it was made of, digests; written last

Shapes: M vectors, F features, Q queries, k neighbours.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError, DataError, MissingExtraError, nearest
from carp.features.extract import Features, Progress
from carp.features.store import Store, open_store
from carp.files.atomic import (
    damage_of,
    digests_of,
    is_unfinished,
    remove_unfinished,
    replacing,
    sha256_of_json,
    write_atomic,
)

SCHEMA = 1
Kind = Literal["exact", "ivf", "hnsw"]
KINDS: tuple[str, ...] = ("auto", *get_args(Kind))
MAX_EXACT, MAX_HNSW = 200_000, 500_000  # vectors, where the kind is chosen by their number
RECALL, NEIGHBOURS = 0.95, 10  # what the settings of an approximate index are raised to: recall@10
MANIFEST, VECTORS = "index.json", "vectors.faiss"
_AGAIN = "Run `carp index` again."
_BYTES_AT_A_TIME = 2**26
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
        """Similarities and rows of the most similar vectors, both [Q, k], best first.

        An approximate index that finds fewer gives the row −1 for the rest.
        """
        if queries.ndim != 2 or queries.shape[1] != self.faiss_index.d:
            received = "×".join(str(n) for n in queries.shape)
            raise DataError(f"the index has vectors of {self.faiss_index.d} features, the queries are {received}.")
        if not 1 <= k <= len(self):
            raise ConfigError(f"k must be from 1 to the {len(self):,} vectors of the index, received {k}.")
        similarities, rows = self.faiss_index.search(unit_length(queries, "the queries"), k)
        return similarities, rows


def build_index(
    features: Features, kind: str = "auto", *, progress: Progress = lambda _done, _all: None
) -> VectorIndex:
    """Make an index of features [M, F].

    Args:
        features: Of any length; they are normalised. May be memory-mapped.
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


def write_index(index: VectorIndex, store: Store, folder: Path) -> None:
    """Keep an index of a store; what an older one left in the folder is replaced."""
    if folder.is_file():
        raise DataError(f"{folder} is a file: give a folder for the index.")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    others = [path.name for path in found if path.name not in {MANIFEST, VECTORS} and not is_unfinished(path)]
    if others:
        raise DataError(f"{folder} holds other files ({others[0]}): give an empty or a new folder for the index.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        (folder / MANIFEST).unlink(missing_ok=True)
        with replacing(folder / VECTORS) as beside:
            load_faiss("an index").write_index(index.faiss_index, str(beside))
        content = {
            "schema": SCHEMA,
            "kind": index.kind,
            "settings": index.settings,
            f"recall@{NEIGHBOURS}": index.recall,
            "store": os.path.relpath(store.folder.resolve(), folder.resolve()),  # so that both may be moved together
            "store_key": store.origin.key(),
            "vectors": len(index),
            "bytes": (folder / VECTORS).stat().st_size,
            "files": {VECTORS: digests_of(folder / VECTORS)},
        }
        write_atomic(folder / MANIFEST, json.dumps({**content, "sha256": sha256_of_json(content)}, indent=1))
    except (OSError, RuntimeError) as error:  # faiss raises the latter
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"cannot write the index {folder}: {reason}.") from error


def is_index(path: str | Path) -> bool:
    """Whether a path is a folder with an index."""
    return (Path(path) / MANIFEST).is_file() and (Path(path) / VECTORS).is_file()


def open_index(folder: Path) -> tuple[VectorIndex, Store]:
    """Open an index, verified, and the store that it was made of, which must not have changed since."""
    about = read_index_manifest(folder)
    store = open_store(Path(os.path.normpath(folder.resolve() / about["store"])))
    if store.origin.key() != about["store_key"] or len(store.features) != about["vectors"]:
        raise DataError(f"the features {store.folder} changed since {folder} was made of them. {_AGAIN}")
    check_vectors(folder, about)
    try:
        index = load_faiss("an index").read_index(str(folder / VECTORS))
    except (OSError, RuntimeError) as error:
        raise DataError(f"cannot read {folder / VECTORS} ({type(error).__name__}). {_AGAIN}") from None
    if (index.ntotal, index.d) != store.features.shape:
        raise DataError(f"{folder / VECTORS} does not belong to {store.folder}. {_AGAIN}")
    return VectorIndex(about["kind"], about["settings"], about["recall"], index), store


def read_index_manifest(folder: Path) -> dict[str, Any]:
    """What an index says of itself; `files` is empty if it was written before there were digests."""
    path = folder / MANIFEST
    try:
        read = json.loads(path.read_text())
        if read["schema"] != SCHEMA:
            raise DataError(f"{path} has schema {read['schema']!r}, and this CARP reads {SCHEMA}. {_AGAIN}")
        if ("sha256" in read or "files" in read) and read.pop("sha256") != sha256_of_json(read):
            raise ValueError("its content does not match its digest")
        about = {name: read[name] for name in ("kind", "settings", "store", "store_key", "vectors", "bytes")}
        if about["kind"] not in get_args(Kind) or not isinstance(about["store"], str):
            raise ValueError("its values are not those of an index")
        return about | {"recall": float(read[f"recall@{NEIGHBOURS}"]), "files": dict(read.get("files", {}))}
    except OSError as error:
        raise DataError(f"{folder} holds no index ({path.name}: {error.strerror}). Run `carp index` first.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise DataError(f"{path} is damaged ({why}). {_AGAIN}") from None


def check_vectors(folder: Path, about: dict[str, Any], *, everything: bool = False) -> None:
    """Raise how the vectors of an index differ from what was written."""
    path = folder / VECTORS
    expected = about["files"].get(VECTORS) or {"bytes": about["bytes"], "chunk": 1, "sha256": []}
    if (found := damage_of(path, expected, everything=everything)) is not None:
        raise DataError(f"{path} is damaged: {found}. {_AGAIN}")


def unit_length(vectors: Features, what: str = "the features") -> Features:
    """Vectors [M, F] divided by their lengths; zero stays zero."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.sqrt(np.einsum("mf,mf->m", vectors, vectors))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise DataError(f"row {row} of {what} has values that are not finite: embed again with another encoder.")
    scaled: Features = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)[:, None]
    return scaled


def parts(features: Features) -> Iterator[Features]:
    """Consecutive rows, so many at a time that memory stays bounded."""
    rows = max(1, _BYTES_AT_A_TIME // (4 * features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows]


def load_faiss(what: str) -> Any:
    """Import faiss, or say what for and how to install it."""
    try:
        import faiss  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(f"{what} needs faiss. Run `pip install 'carp-ssl[eval]'`.") from None
    return faiss


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
    """Rows spread evenly over all: nothing is random, and no folder of the images is left out."""
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
    """The k highest similarities of every query, [Q, k], without an index of all vectors."""
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for part in parts(features):
        both = np.concatenate([best, queries @ unit_length(part).T], axis=1)
        best = np.sort(np.partition(both, -k, axis=1)[:, -k:], axis=1)[:, ::-1]
    return best
