"""Whitening against NumPy and scikit-learn."""

from pathlib import Path

import numpy as np
import pytest

from carp.errors import DataError
from carp.evaluation.ranked.whitening import Whitening, fit_whitening


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


@pytest.mark.parametrize("dimensions", [12, 5])
def test_against_scikit_learn(dimensions: int) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    features, others = mixed(500), mixed(70, seed=1)
    ours = fit_whitening(features, dimensions=dimensions).apply(others)
    unit, other_unit = (x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True) for x in (features, others))
    theirs = decomposition.PCA(dimensions, whiten=True, svd_solver="full").fit(unit).transform(other_unit)
    signs = np.sign((ours * theirs).sum(axis=0))  # which end of an axis is positive is a convention
    assert np.allclose(ours, theirs * signs, atol=1e-4)


def test_few_images_have_few_dimensions() -> None:
    features = mixed(6)
    assert fit_whitening(features).dimensions == 5
    with pytest.raises(DataError, match="6 images with 12 features have variance in 5"):
        fit_whitening(features, dimensions=6)
    with pytest.raises(DataError, match="all images have the same features"):
        fit_whitening(np.ones((5, 3), dtype=np.float32))
    with pytest.raises(DataError, match="at least 2 images, received 1"):
        fit_whitening(features[:1])


def test_kept_in_a_file(tmp_path: Path) -> None:
    white = fit_whitening(mixed(50))
    white.save(tmp_path / "white.npz")
    again = Whitening.load(tmp_path / "white.npz")
    features = mixed(9, seed=3)
    assert np.array_equal(again.apply(features), white.apply(features))
    with pytest.raises(DataError, match="learned on 12 features an image, received 11"):
        again.apply(features[:, :11].copy())


def test_files_that_are_no_whitening(tmp_path: Path) -> None:
    path = tmp_path / "white.npz"
    with pytest.raises(DataError, match="No such file"):
        Whitening.load(path)
    np.savez(path, mean=np.array([object()]), axes=np.eye(2))  # a pickle inside
    with pytest.raises(DataError, match="is no whitening"):
        Whitening.load(path)
    np.savez(path, mean=np.zeros(3), axes=np.eye(2))
    with pytest.raises(DataError, match="do not fit together"):
        Whitening.load(path)
    for raw in (b"", b"text", path.read_bytes()[:-40]):
        path.write_bytes(raw)
        with pytest.raises(DataError):
            Whitening.load(path)
