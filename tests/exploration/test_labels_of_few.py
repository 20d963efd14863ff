"""Labels from a few: predictions, calibration, suggestions, labels that look wrong."""

import numpy as np
import pytest

from carp.exploration.label_advice import doubtful_labels, suggest_images
from carp.exploration.label_prediction import calibration_error, predict_labels, softmax
from tests.exploration.test_clusters import blobs

FEATURES, TRUTH = blobs([60, 60, 60], spread=0.7)


def draw(count: int) -> np.ndarray:
    """Rows of `count` images per class."""
    generator = np.random.default_rng(0)
    return np.concatenate([generator.choice(np.flatnonzero(c == TRUTH), count, replace=False) for c in range(3)])


def test_predictions_are_right_and_calibrated() -> None:
    rows = draw(12)
    found = predict_labels(FEATURES, FEATURES[rows], TRUTH[rows], 3)
    assert (found.classes == TRUTH).mean() > 0.9
    assert found.method is not None
    assert found.method in found.methods
    assert found.method.log_loss == min(method.log_loss for method in found.methods)
    assert sorted(found.held_out.tolist()) == list(range(36))
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)
    right = found.held_out_probabilities.argmax(axis=1) == TRUTH[rows][found.held_out]
    assert found.method.accuracy == pytest.approx(right.mean())
    assert calibration_error(found.probabilities, TRUTH) < 0.1
    names = {method.name for method in found.methods}
    assert any("k-NN" in name for name in names)
    assert any("linear" in name for name in names)


def test_one_label_per_class_is_not_calibrated() -> None:
    rows = draw(1)
    found = predict_labels(FEATURES, FEATURES[rows], TRUTH[rows], 3)
    assert found.method is None
    assert (found.classes[rows] == TRUTH[rows]).all()
    assert (found.classes == TRUTH).mean() > 0.6


def test_the_expected_calibration_error() -> None:
    sure = np.array([[0.95, 0.05]] * 20)
    labels = np.array([0] * 19 + [1])
    assert calibration_error(sure, labels) == pytest.approx(0)
    assert calibration_error(sure, 1 - labels) == pytest.approx(0.9)
    np.testing.assert_allclose(softmax(np.array([[1e4, 1e4 - 1]])), [[1 / (1 + np.exp(-1)), 1 / (1 + np.e)]])


def test_suggestions_cover_what_has_no_labels() -> None:
    pytest.importorskip("faiss")
    rows = np.flatnonzero(TRUTH < 2)[::20]
    found = predict_labels(FEATURES, FEATURES[rows], TRUTH[rows], 3)
    chosen = suggest_images(FEATURES, rows, found, 6)
    assert len(set(chosen)) == 6
    assert not set(chosen) & set(rows.tolist())
    assert (TRUTH[chosen] == 2).sum() >= 2  # a third of the images, without a label
    assert suggest_images(FEATURES, rows, found, 0) == []
    everything = suggest_images(FEATURES, rows, found, 10_000)
    assert sorted([*everything, *rows.tolist()]) == list(range(len(FEATURES)))


def test_wrong_labels_are_found() -> None:
    rows = draw(15)
    labels = TRUTH[rows].copy()
    labels[[3, 20]] = 2, 0
    found = predict_labels(FEATURES, FEATURES[rows], labels, 3)
    doubtful = doubtful_labels(found, labels)
    assert {3, 20} <= {each.place for each in doubtful[:4]}
    by_place = {each.place: each for each in doubtful}
    assert (by_place[3].predicted, by_place[20].predicted) == (0, 1)
    assert all(each.probability >= 0.5 and each.own_probability <= 0.1 for each in doubtful)
