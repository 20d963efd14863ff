"""Whitening against NumPy and scikit-learn."""

import numpy as np
import pytest

from carp.errors import DataError
from carp.evaluation.ranked.whitening import fit_whitening


def mixed(count: int, width: int = 12, seed: int = 0) -> np.ndarray:
    """Correlated features with a mean."""
    draw = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).standard_normal((width, width))
    return (draw.standard_normal((count, width)) @ mixing + 2).astype(np.float32)


def test_the_learned_set_becomes_white() -> None:
    features = mixed(4000)
    white = fit_whitening(features).apply(features)
    assert np.allclose(white.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(np.cov(white.T), np.eye(12), atol=1e-4)


def test_against_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    features, others = mixed(500), mixed(70, seed=1)
    ours = fit_whitening(features).apply(others)
    unit, other_unit = (x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True) for x in (features, others))
    theirs = decomposition.PCA(12, whiten=True, svd_solver="full").fit(unit).transform(other_unit)
    signs = np.sign((ours * theirs).sum(axis=0))  # which end of an axis is positive is a convention
    assert np.allclose(ours, theirs * signs, atol=1e-4)


def test_few_images_have_few_dimensions() -> None:
    features = mixed(6)
    assert fit_whitening(features).dimensions == 5
    with pytest.raises(DataError, match="the same features"):
        fit_whitening(np.ones((5, 3), dtype=np.float32))
    with pytest.raises(DataError, match=r"at least 2 images .*received 1"):
        fit_whitening(features[:1])


def test_features_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="learned from 12 features per image, received 11"):
        fit_whitening(mixed(50)).apply(mixed(9, width=11))
