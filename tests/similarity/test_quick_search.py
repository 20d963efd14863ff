"""Neighbours of one image: exact whatever the data look like, and measured where they are not."""

import numpy as np
import pytest

from carp.errors import DataError
from carp.similarity.quick_search import QuickSearch

pytest.importorskip("faiss")
GENERATOR = np.random.default_rng(0)


def brute(features: np.ndarray, query: np.ndarray, k: int) -> np.ndarray:
    vectors = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = vectors @ (query / np.linalg.norm(query))
    return np.sort(cosines)[::-1][:k]


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-5])
def test_neighbours_are_exact_even_where_vectors_are_nearly_equal(spread: float) -> None:
    """With a spread of 1e-5, thousands of vectors have the same cosine in 16 bits."""
    middle = GENERATOR.normal(size=16)
    features = (middle + spread * GENERATOR.normal(size=(5000, 16))).astype(np.float32)
    search = QuickSearch(features)
    assert search.is_exact
    assert search.recall == 1.0
    for row in (0, 17, 4999):
        cosines, rows = search.nearest(features[row], 10)
        assert len(set(rows.tolist())) == 10
        np.testing.assert_allclose(cosines, brute(features, features[row], 10), atol=3e-7)


def test_a_scan_of_fewer_dimensions_says_how_many_neighbours_it_finds() -> None:
    centres = GENERATOR.normal(size=(20, 64))
    features = (centres[GENERATOR.integers(0, 20, 4000)] + 0.5 * GENERATOR.normal(size=(4000, 64))).astype(np.float32)
    search = QuickSearch(features, numbers=4000 * 20)
    assert not search.is_exact
    assert 0.8 < search.recall <= 1.0
    cosines, rows = search.nearest(features[3], 5)
    assert rows[0] == 3
    assert (np.diff(cosines) <= 0).all()


def test_a_few_vectors_and_mistakes() -> None:
    search = QuickSearch(np.eye(3, 4, dtype=np.float32))
    assert search.nearest(np.ones(4, dtype=np.float32), 10)[1].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="received 5"):
        search.nearest(np.ones(5, dtype=np.float32), 1)
