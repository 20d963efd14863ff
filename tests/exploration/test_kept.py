"""Neighbours that two encoders share; maps that are turned to match, and kept beside their features."""

from pathlib import Path

import numpy as np
import pytest

from carp.exploration.kept_neighbours import kept_neighbours
from carp.exploration.layout import Layout, aligned, lay_out_quickly
from carp.exploration.stored_layout import MAP, read_layout, write_layout

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(60, 12)).astype(np.float32)


def test_the_same_features_keep_all_neighbours_and_others_few() -> None:
    assert kept_neighbours(FEATURES, 3 * FEATURES, most=100).mean == 1
    turned, _ = np.linalg.qr(GENERATOR.normal(size=(12, 12)))
    assert kept_neighbours(FEATURES, (FEATURES @ turned).astype(np.float32), most=100).mean == 1
    changed = FEATURES.copy()
    changed[:3] = GENERATOR.normal(size=(3, 12))
    found = kept_neighbours(FEATURES, changed, most=100)
    assert set(found.least(3)) == {0, 1, 2}
    assert kept_neighbours(FEATURES, changed, most=20).rows.shape == (20,)


def test_a_map_is_turned_and_mirrored_to_match() -> None:
    points = lay_out_quickly(FEATURES).points
    mirrored = np.stack([points[:, 1], -points[:, 0]], axis=1) * np.array([1, -1], dtype=np.float32)
    np.testing.assert_allclose(aligned(mirrored, points), points, atol=1e-5)


def test_quick_places_follow_the_largest_differences() -> None:
    own = np.repeat([0, 1], 30)
    points = lay_out_quickly(FEATURES + 8 * np.eye(12, dtype=np.float32)[own]).points
    assert (points[own == 0, 0].max() < points[own == 1, 0].min()) or (
        points[own == 1, 0].max() < points[own == 0, 0].min()
    )
    assert lay_out_quickly(np.ones((4, 3), dtype=np.float32)).points.tolist() == [[0, 0]] * 4


def test_a_map_is_kept_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    layout = Layout(GENERATOR.uniform(-1, 1, (60, 2)).astype(np.float32), "t-SNE")
    assert read_layout(tmp_path, "key", 60) is None
    assert write_layout(tmp_path, "key", layout)
    found = read_layout(tmp_path, "key", 60)
    assert found is not None
    assert found.method == "t-SNE"
    np.testing.assert_array_equal(found.points, layout.points)
    assert read_layout(tmp_path, "other", 60) is None
    assert read_layout(tmp_path, "key", 61) is None
    whole = (tmp_path / MAP).read_bytes()
    for damaged in (whole[:50], b"", b"[]\n" + whole, whole.replace(b"NUMPY", b"PICKL")):
        (tmp_path / MAP).write_bytes(damaged)
        assert read_layout(tmp_path, "key", 60) is None
    assert not write_layout(tmp_path / "none", "key", layout)


@pytest.mark.parametrize("places", [["a.png"], ["a\nb", "ä\u202e.png", "x" * 300, "\udc80.png"]])
def test_places_are_read_by_row(tmp_path: Path, places: list[str]) -> None:
    import json

    from carp.features.store import PLACES, Origin, Store
    from carp.features.stored_places import StoredPlaces

    (tmp_path / PLACES).write_text("".join(json.dumps(place) + "\n" for place in places))
    store = Store(tmp_path, Origin({}, {}, {"name": "x", "images": len(places)}), (), [])
    found = StoredPlaces(store)
    assert [found[row] for row in range(len(found))] == places
