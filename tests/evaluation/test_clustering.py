"""k-means: the numbers of faiss with the paper's settings, and what is told about empty clusters."""

import sys

import numpy as np
import pytest

from carp.errors import MissingExtraError
from carp.evaluation.clustering import kmeans
from carp.evaluation.protocols.kmeans import KmeansSettings

faiss = pytest.importorskip("faiss", reason="faiss is not installed")
metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


def make(num_images: int = 900, num_classes: int = 6, noise: float = 1.5) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_images)
    features = rng.standard_normal((num_classes, 12))[labels] + noise * rng.standard_normal((num_images, 12))
    x = (features * rng.uniform(0.2, 5, (num_images, 1))).astype(np.float32)
    half = num_images // 2
    return [x[:half], labels[:half], x[half:], labels[half:]]


def test_equals_faiss_by_hand() -> None:
    train, _, test, truth = data = make()
    result = kmeans(*data, iterations=15, redos=4, seeds=(3, 4))
    found = []
    for seed in (3, 4):
        unit_train, unit_test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
        bare = faiss.Kmeans(12, 6, niter=15, nredo=4, spherical=True, seed=seed, min_points_per_centroid=1)
        bare.train(unit_train)
        centroids = bare.centroids
        assert np.allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
        clusters = (unit_test @ centroids.T).argmax(axis=1)
        found.append(
            [
                metrics.normalized_mutual_info_score(truth, clusters),
                metrics.adjusted_mutual_info_score(truth, clusters),
                metrics.adjusted_rand_score(truth, clusters),
            ]
        )
    names = ("nmi", "ami", "ari")
    assert [result.values[n] for n in names] == pytest.approx(np.mean(found, axis=0), abs=1e-12)
    assert [result.spread[n] for n in names] == pytest.approx(np.std(found, axis=0), abs=1e-12)
    assert [row["seed"] for row in result.details["seeds"]] == [3, 4]
    assert 0.2 < result.values["nmi"] < 1


def test_standardised_features_equal_the_authors_clustering_by_hand() -> None:
    """Restated with NumPy and faiss: standardised by the training part, not normalised, at most 256 per cluster."""
    train, labels, test, truth = make(num_images=2400, num_classes=3)
    train[:, 4] = test[:, 4] = 7  # a constant feature is not divided by 0
    authors = KmeansSettings(preset="authors").model_dump(exclude={"preset"})
    result = kmeans(train, labels, test, truth, **authors | {"iterations": 15}, predict=True)
    mean, deviation = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    deviation[4] = 1
    fit, score = (((x - mean) / deviation).astype(np.float32) for x in (train, test))
    assert len(train) > 256 * 3, "faiss draws a part of them"
    bare = faiss.Kmeans(12, 3, niter=15, nredo=10, spherical=True)  # with faiss's own seed and number of images
    bare.train(fit)
    clusters = (score @ bare.centroids.T).argmax(axis=1)
    assert result.values["nmi"] == pytest.approx(metrics.normalized_mutual_info_score(truth, clusters), abs=1e-9)
    assert result.values["ari"] == pytest.approx(metrics.adjusted_rand_score(truth, clusters), abs=1e-9)
    assert (result.settings["scale"], result.settings["redos"], result.settings["seeds"]) == ("standard", 10, [1234])
    assert result.settings["images_per_cluster"] == 256
    cosines = (score @ bare.centroids.T).max(axis=1) / np.linalg.norm(score, axis=1)
    assert result.predicted["@seed 1234"].scores == pytest.approx(cosines, abs=1e-4)
    unit = kmeans(train, labels, test, truth, **authors | {"iterations": 15, "scale": "unit"})
    assert unit.values["nmi"] != result.values["nmi"]


def test_lengths_do_not_matter_and_seeds_repeat() -> None:
    train, labels, test, truth = make()
    first = kmeans(train, labels, test, truth, iterations=10, redos=2, seeds=(7,))
    scaled = kmeans(4 * train, labels, test / 4, truth, iterations=10, redos=2, seeds=(7,))
    assert scaled.values == first.values
    assert not first.spread, "one run has no deviation"


def test_well_separated_classes_are_found() -> None:
    result = kmeans(*make(noise=0.05), iterations=20, redos=10, seeds=(0,))
    assert result.values["accuracy"] == 1
    assert result.settings["clusters"] == 6


def test_empty_clusters_are_reported() -> None:
    rng = np.random.default_rng(0)
    two = rng.standard_normal((2, 5)).astype(np.float32)
    train, labels = two[np.arange(40) % 2], np.arange(40) % 4
    test, truth = two[:1].repeat(8, axis=0), np.arange(8) % 4
    (seed,) = kmeans(train, labels, test, truth, iterations=5, redos=1, seeds=(0,)).details["seeds"]
    assert seed["empty_train"] == 2  # two distinct images fill two of four clusters
    assert seed["empty_test"] == 3


def test_part_of_the_images() -> None:
    data = make()
    few = kmeans(*data, iterations=5, redos=1, images_per_cluster=10, seeds=(0,))
    assert few.settings["images_per_cluster"] == 10
    everything = kmeans(*data, iterations=5, redos=1, seeds=(0,))
    assert few.details["seeds"][0]["objective"] < everything.details["seeds"][0]["objective"] / 5  # a sum over images


def test_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"carp-ssl\[eval\]"):
        kmeans(*make())
