"""Measures against their definitions."""

import itertools

import numpy as np
import pytest

from carp.evaluation.metrics import average_precision, clustering_metrics, matched_accuracy, mean_per_class

sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


def test_matched_accuracy_is_the_best_over_all_matchings() -> None:
    rng = np.random.default_rng(0)
    for num_clusters in (3, 4, 6):
        truth, clusters = rng.integers(0, 4, 60), rng.integers(0, num_clusters, 60)
        larger = max(4, num_clusters)
        best = max(
            np.mean([matching[c] == t for c, t in zip(clusters, truth, strict=True)])
            for matching in itertools.permutations(range(larger))
        )
        assert matched_accuracy(truth, clusters) == pytest.approx(best, abs=1e-15)


def test_renamed_classes_are_perfect_clusters() -> None:
    truth = np.arange(50) % 5
    metrics = clustering_metrics(truth, (truth + 2) % 5)
    assert all(value == pytest.approx(1) for value in metrics.values())


def test_mutual_information_from_its_definition() -> None:
    rng = np.random.default_rng(1)
    truth, clusters = rng.integers(0, 3, 200), rng.integers(0, 4, 200)
    joint = np.histogram2d(truth, clusters, bins=(3, 4))[0] / 200
    p, q = joint.sum(1), joint.sum(0)
    information = np.sum(joint * np.log(joint / np.outer(p, q)))
    h_p, h_q = -np.sum(p * np.log(p)), -np.sum(q * np.log(q))
    metrics = clustering_metrics(truth, clusters)
    assert metrics["nmi"] == pytest.approx(information / ((h_p + h_q) / 2), abs=1e-12)
    assert metrics["homogeneity"] == pytest.approx(information / h_p, abs=1e-12)
    assert metrics["completeness"] == pytest.approx(information / h_q, abs=1e-12)


def plain_average_precision(shown: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Both kinds from the definition: the best precision at a recall of at least r."""
    total = shown.sum()
    points = [(shown[scores >= s].sum(), (scores >= s).sum()) for s in np.unique(scores)]

    def best(needed: float) -> float:
        return max(found / taken for found, taken in points if found >= needed - 1e-9)

    return sum(best(i) for i in range(1, total + 1)) / total, sum(best(r * total / 10) for r in range(11)) / 11


@pytest.mark.parametrize("levels", [3, 10, 10_000])
def test_average_precision_from_its_definition(levels: int) -> None:
    rng = np.random.default_rng(levels)
    for _ in range(20):
        shown = rng.random(60) < 0.3
        shown[0] = True
        scores = rng.integers(0, levels, 60) + 3 * shown
        order = rng.permutation(60)
        ours = average_precision(shown, scores.astype(float))
        assert ours == pytest.approx(plain_average_precision(shown, scores), abs=1e-12)
        assert average_precision(shown[order], scores[order].astype(float)) == ours


def test_average_precision_by_hand() -> None:
    shown = np.array([True, False, True, False, True])
    area, eleven = average_precision(shown, np.array([0.9, 0.8, 0.7, 0.6, 0.5]))
    assert area == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert eleven == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 3 / 5) / 11)


def test_mean_per_class_is_balanced_accuracy() -> None:
    rng = np.random.default_rng(0)
    for size in (7, 300):
        truth = rng.choice([0, 3, 4, 9], p=[0.9, 0.05, 0.04, 0.01], size=size)  # uneven, and most numbers do not occur
        predicted = np.where(rng.random(size) < 0.6, truth, rng.choice([0, 3, 4, 9], size=size))
        by_hand = [np.mean(predicted[truth == c] == c) for c in sorted(set(truth.tolist()))]
        found = mean_per_class(truth, predicted == truth)
        assert found == pytest.approx(np.mean(by_hand), abs=1e-15)
        if set(predicted) <= set(truth):  # scikit-learn warns of other predictions
            assert found == pytest.approx(sklearn_metrics.balanced_accuracy_score(truth, predicted), abs=1e-15)
    assert mean_per_class(np.array([0, 0, 0, 1]), np.array([True, True, True, False])) == 0.5
