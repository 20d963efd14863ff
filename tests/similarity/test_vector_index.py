"""The index of features: a plain search, approximate kinds as good as they say, and never of other features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from carp.errors import ConfigError, DataError
from carp.features.extract import FeatureBatch
from carp.features.filling import fill_store
from carp.features.store import Origin, Store, open_store, write_manifest
from carp.images.sources.array import ArraySource
from carp.similarity.index_folder import open_index, write_index
from carp.similarity.vector_index import RECALL, VectorIndex, build_index

F = 24


def vectors(count: int = 2000, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, F))
    return (centres[np.arange(count) % 20] + rng.standard_normal((count, F))).astype(np.float32)


def make_store(folder: Path, features: NDArray[np.float32], name: str = "a") -> Store:
    source = ArraySource(np.zeros((len(features), 1, 1, 3), np.uint8), name=name)
    origin = Origin(
        {"name": "m", "hash": "h", "branch": "", "layer": "encoder"},
        {},
        {"name": name, "fingerprint": name, "images": len(features)},
    )
    batches = [FeatureBatch(features, list(range(len(features))), [])]
    return fill_store(folder, origin, source, lambda _source: iter(batches), batch_size=len(features))


def plain(features: NDArray[np.float32], queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, features)]
    return np.argsort(-(unit[0] @ unit[1].T), axis=1)[:, :k]


def test_exact_is_a_plain_search() -> None:
    features, queries = vectors(), 3.0 * vectors(7, seed=1)
    similarities, rows = build_index(features, "exact").search(queries, 9)
    assert np.array_equal(rows, plain(features, queries, 9))
    cosine = [
        features[r] @ q / np.linalg.norm(q) / np.linalg.norm(features[r])
        for r, q in zip(rows[:, 0], queries, strict=True)
    ]
    assert np.allclose(similarities[:, 0], cosine, atol=1e-5)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_kinds_find_what_they_say(kind: str) -> None:
    features, queries = np.split(vectors(4200), [4000])
    index = build_index(features, kind)
    assert index.kind == kind
    assert index.recall >= RECALL
    rows, truth = index.search(queries, 10)[1], plain(features, queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, truth, strict=True)])
    assert recall >= 0.9  # of other queries than those it was measured with
    if kind == "ivf":
        assert index.settings["nprobe"] < index.settings["nlist"], "it would be an exact search"


def test_the_kind_follows_from_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carp.similarity.vector_index.MAX_EXACT", 100)
    monkeypatch.setattr("carp.similarity.vector_index.MAX_HNSW", 200)
    assert [build_index(vectors(n)).kind for n in (100, 200, 201)] == ["exact", "hnsw", "ivf"]


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw"])
def test_kept_and_opened_again(kind: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", vectors())
    index = build_index(store.features, kind)
    write_index(index, store, tmp_path / "index")
    again, of = open_index(tmp_path / "index")
    assert (again.kind, again.settings, again.recall, of.folder) == (kind, index.settings, index.recall, store.folder)
    for ours, theirs in zip(again.search(vectors(5, 1), 4), index.search(vectors(5, 1), 4), strict=True):
        assert np.array_equal(ours, theirs)


def kept(tmp_path: Path) -> VectorIndex:
    store = make_store(tmp_path / "both" / "store", vectors(50))
    index = build_index(store.features)
    write_index(index, store, tmp_path / "both" / "store" / "index")
    return index


def test_store_and_index_may_be_moved_together(tmp_path: Path) -> None:
    kept(tmp_path)
    (tmp_path / "both").rename(tmp_path / "moved")
    assert open_index(tmp_path / "moved" / "store" / "index")[1].folder == tmp_path / "moved" / "store"


def test_a_store_that_changed_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    folder = tmp_path / "both" / "store"
    store = open_store(folder)
    write_manifest(replace(store, origin=replace(store.origin, model=store.origin.model | {"hash": "other"})))
    with pytest.raises(DataError, match="changed since"):
        open_index(folder / "index")


@pytest.mark.parametrize("damage", ["cut", "text", "manifest", "gone", "schema"])
def test_damage_is_told(damage: str, tmp_path: Path) -> None:
    kept(tmp_path)
    folder = tmp_path / "both" / "store" / "index"
    file, manifest = folder / "vectors.faiss", folder / "index.json"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "text":
        file.write_bytes(b"x" * file.stat().st_size)
    elif damage == "manifest":
        manifest.write_text("[]")
    elif damage == "gone":
        file.unlink()
    else:
        manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(DataError, match="carp index"):
        open_index(folder)


def test_mistakes(tmp_path: Path) -> None:
    index = kept(tmp_path)
    with pytest.raises(DataError, match="no index"):
        open_index(tmp_path)
    with pytest.raises(ConfigError, match="from 1 to 50"):
        index.search(vectors(1), 51)
    with pytest.raises(DataError, match="24 features"):
        index.search(vectors(1)[:, :5], 1)
    with pytest.raises(ConfigError, match="Did you mean 'hnsw'"):
        build_index(vectors(9), "hsnw")
    bad = vectors(9)
    bad[4, 2] = np.nan
    with pytest.raises(DataError, match="row 4"):
        build_index(bad)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"thesis\.tex"):
        write_index(index, make_store(tmp_path / "s", vectors(50)), tmp_path / "other")
