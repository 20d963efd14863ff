"""Clusters, their number, their names and their folders."""

from pathlib import Path

import numpy as np
import pytest

from carp.errors import DataError
from carp.exploration.cluster_count import choose_count
from carp.exploration.cluster_names import cluster_names
from carp.exploration.clusters import assign_to, cluster_features
from carp.exploration.link_folders import safe_name, write_link_folders

pytest.importorskip("faiss")
pytest.importorskip("sklearn")


def blobs(sizes: list[int], spread: float = 0.25, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    own = np.repeat(np.arange(len(sizes)), sizes)
    centres = generator.normal(size=(len(sizes), 24))
    return (centres[own] + spread * generator.normal(size=(len(own), 24))).astype(np.float32), own


def test_clusters_are_found_and_numbered_by_size() -> None:
    features, own = blobs([20, 60, 40])
    found = cluster_features(features, 3)
    assert found.sizes.tolist() == [60, 40, 20]
    for number, group in enumerate((1, 2, 0)):
        assert (found.own[own == group] == number).all()
    assert len(found) == 3
    assert ((found.certainty > 0) & (found.certainty <= 1)).all()
    typical = found.typical(0, 3)
    assert found.similarity[typical[0]] == found.similarity[found.own == 0].max()
    assert found.certainty[found.doubtful(0, 1)[0]] == found.certainty[found.own == 0].min()
    assert found.similarity[found.outliers(1)[0]] == found.similarity.min()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    np.testing.assert_allclose(found.similarity, (unit * found.centres[found.own]).sum(axis=1), rtol=1e-4)


def test_given_centres_without_images_are_left_out() -> None:
    centres = np.eye(4, dtype=np.float32)
    found = assign_to(np.float32([[1, 0.1, 0, 0], [0, 0, 3, 0], [0, 0, 1, 0.2]]), centres)
    assert len(found) == 2
    assert found.own.tolist() == [1, 0, 0]
    one = assign_to(np.float32([[1, 0]]), np.float32([[1, 0]]))
    assert one.certainty.tolist() == [1]


@pytest.mark.parametrize("groups", [4, 9])
def test_the_number_of_clear_groups_is_found(groups: int) -> None:
    features, _ = blobs([60] * groups)
    calls: list[tuple[int, int]] = []
    found = choose_count(features, progress=lambda done, total: calls.append((done, total)))
    assert found.chosen == groups
    assert found.silhouette[groups] > 0.5
    assert calls[-1][0] == calls[-1][1] == len(found.silhouette)


def test_a_few_images_have_a_number_of_clusters() -> None:
    assert choose_count(blobs([5])[0]).chosen == 2


def test_names_come_from_labels_or_from_file_names() -> None:
    own = np.repeat([0, 1, 2], 4)
    places = [f"photos/beach_{i}.jpg" for i in range(4)] + [f"photos/IMG_{i}.jpg" for i in range(4)]
    places += [f"photos/{word}{i}.jpg" for i, word in enumerate(["dog", "dog", "cat", "dog"])]
    assert cluster_names(own, places, None, ()) == ["beach", "img", "dog"]
    labels = np.array([0, 0, 1, 0, 1, 1, 1, 1, -1, -1, 0, -1])
    assert cluster_names(own, places, labels, ("sea", "city")) == ["sea", "city", ""]
    assert cluster_names(own, ["same.jpg"] * 12, None, ()) == [""] * 3  # nothing tells them apart
    assert cluster_names(own, ["1.jpg"] * 12, None, ()) == [""] * 3


def test_folders_of_links(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.jpg").write_text(folder)
    places = [str(tmp_path / folder / "same.jpg") for folder in ("a", "b")]
    for _ in range(2):  # an older one is replaced
        write_link_folders(tmp_path / "links", places, ["1: x/../y", "1: x/../y"])
    (inside,) = (tmp_path / "links").iterdir()
    assert sorted(link.read_text() for link in inside.iterdir()) == ["a", "b"]
    assert all(link.is_symlink() for link in inside.iterdir())
    with pytest.raises(DataError, match="not a file"):
        write_link_folders(tmp_path / "links", ["no.jpg"], ["1"])
    assert (tmp_path / "links").is_dir()
    assert [safe_name(name) for name in ("..", "", "a/b", "x" * 300)] == ["_", "_", "a_b", "x" * 80]
