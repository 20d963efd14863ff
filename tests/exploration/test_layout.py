"""The map: neighbours stay together, with t-SNE, without it, and with landmarks."""

import sys

import numpy as np
import pytest

from carp.exploration import layout as module
from carp.exploration.layout import lay_out

GENERATOR = np.random.default_rng(0)
CENTRES = GENERATOR.normal(size=(3, 16))
OWN = np.repeat(np.arange(3), 30)
FEATURES = (3 * CENTRES[OWN] + GENERATOR.normal(size=(90, 16))).astype(np.float32)


def purity(points: np.ndarray, own: np.ndarray) -> float:
    """Share of points whose nearest other point is of the same group."""
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distance, np.inf)
    return float((own[distance.argmin(axis=1)] == own).mean())


def test_groups_stay_together_and_points_fit_the_page() -> None:
    pytest.importorskip("openTSNE")
    calls: list[tuple[int, int]] = []
    found = lay_out(FEATURES, progress=lambda done, total: calls.append((done, total)))
    assert found.method == "t-SNE"
    assert found.points.shape == (90, 2)
    assert np.abs(found.points).max() == pytest.approx(1)
    assert purity(found.points, OWN) > 0.95
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] <= calls[-1][1]
    np.testing.assert_array_equal(lay_out(FEATURES).points, found.points)


def test_only_directions_matter() -> None:
    pytest.importorskip("openTSNE")
    lengths = np.linspace(0.1, 50, 90, dtype=np.float32)[:, None]
    assert purity(lay_out(FEATURES * lengths).points, OWN) > 0.95


def test_without_the_extra_principal_components_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    found = lay_out(FEATURES)
    assert "principal components" in found.method
    assert "carp-ssl[explore]" in found.method
    assert purity(found.points, OWN) > 0.8


def test_more_images_than_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openTSNE")
    monkeypatch.setattr(module, "LANDMARKS", 60)
    found = lay_out(FEATURES)
    assert "60" in found.method
    assert purity(found.points, OWN) > 0.9


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_images_have_a_place(count: int) -> None:
    points = lay_out(FEATURES[:count]).points
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()


def test_equal_images_have_one_place() -> None:
    assert not lay_out(np.ones((20, 4), dtype=np.float32)[:5]).points.any()
