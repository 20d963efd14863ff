"""Few-shot: what is drawn, and the classifiers against plain ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from carp.errors import ConfigError, DataError
from carp.evaluation.few_shot.few_labels import draw_multi_label, draw_single_label, few_shot
from carp.evaluation.linear.crop_training import CropTraining
from carp.evaluation.linear.grid import Classifier, LinearGrid, shuffled
from carp.evaluation.protocols.few_shot import FewShotSettings
from carp.images.loading.loader import normalise
from carp.images.views.batch_views import batch_views
from carp.images.views.view_parameters import crop_and_flip
from tests.evaluation.test_linear_images import CLASSES, CPU, Case, top1_of

svm = pytest.importorskip("sklearn.svm", reason="scikit-learn is not installed")


def single(num_classes: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % num_classes
    x = (rng.standard_normal((num_classes, 8))[labels] + rng.standard_normal((300, 8))).astype(np.float32)
    return [x[:200], labels[:200], x[200:], labels[200:]]


def several() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shown = rng.random((300, 4)) < 0.25
    x = (shown @ rng.standard_normal((4, 8)) + 0.7 * rng.standard_normal((300, 8))).astype(np.float32)
    labels = np.where(shown, 1, np.where(rng.random(shown.shape) < 0.1, 0, -1))  # 0: difficult
    return [x[:200], labels[:200], x[200:], labels[200:]]


def test_draws_of_single_labels() -> None:
    labels = np.repeat([0, 1, 2], [50, 3, 20])[np.random.default_rng(0).permutation(73)]
    draws = {n: draw_single_label(labels, n, 0, 0) for n in (1, 4, 100)}
    assert np.bincount(labels[draws[4]]).tolist() == [4, 3, 4]
    assert set(draws[1]) < set(draws[4])
    assert draws[100].tolist() == list(range(73))
    assert draw_single_label(labels, 4, 0, 1).tolist() != draws[4].tolist()
    assert draw_single_label(labels, 4, 1, 0).tolist() != draws[4].tolist()


def test_draws_of_several_labels() -> None:
    shown = several()[1] > 0
    rows = draw_multi_label(shown, 8, 0, 0).reshape(4, 8)
    for label, own in enumerate(rows):
        assert shown[own, label].all()
        assert len(set(own)) == 8
    assert len(set(rows.ravel())) < 32  # an image that two classes draw is there twice
    smaller = draw_multi_label(shown, 2, 0, 0).reshape(4, 2)
    assert (smaller == rows[:, :2]).all()


def test_linear_classifier_equals_a_plain_one() -> None:
    x, y, test, truth = data = single()
    data[2:] = test, truth = test[truth != 4][:50], truth[truth != 4][:50]  # classes of 13 and 12 images, one of none
    result = few_shot(*data, shots=(2, "full"), runs=3, seed=9)
    found, per_class = [], []
    for run in range(3):
        rows = draw_single_label(y, 2, 9, run)
        layer = nn.Linear(8, 5)
        start = LinearGrid([Classifier("sgd", 0.03)], 8, 5, seed=9 + run)
        layer.load_state_dict({"weight": start.weight_SCF[0], "bias": start.bias_SC[0]})
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.03, momentum=0.9)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [12, 18])
        batches = shuffled(x, y, rows, batch_size=256, seed=9 + run)
        for epoch in range(20):
            for features, labels in batches(epoch):
                optimiser.zero_grad()
                F.cross_entropy(layer(features), labels).backward()
                optimiser.step()
            schedule.step()
        right = layer(torch.from_numpy(test)).argmax(dim=1).numpy() == truth
        found.append(np.mean(right))
        per_class.append(np.mean([np.mean(right[truth == label]) for label in range(4)]))
    assert result.values["top1@2"] == pytest.approx(np.mean(found), abs=1e-12)
    assert result.values["mean_per_class@2"] == pytest.approx(np.mean(per_class), abs=1e-12)
    assert result.values["mean_per_class@2"] != pytest.approx(result.values["top1@2"], abs=1e-5)
    assert result.spread["top1@2"] == pytest.approx(np.std(found), abs=1e-12)
    assert [row["images"] for row in result.details["2"]] == [10, 10, 10]
    assert len(result.details["full"]) == 1
    assert "top1@full" not in result.spread
    assert result.values["top1@full"] > result.values["top1@2"]


def test_the_authors_preset_equals_plain_pytorch_over_the_same_crops(tmp_path: Path) -> None:
    """A larger learning rate, decay, bilinear crops and flips in every epoch, and the best epoch on the test images."""
    case = Case()
    train, test = case.train, case.test
    settings = FewShotSettings(preset="authors", shots=(2, 10), runs=2)
    assert (settings.lr, settings.weight_decay, settings.best_epoch) == (0.3, 1e-6, True)
    crops = CropTraining(
        case.encoder, train, 32, CPU, workers=0, interpolation=settings.crop_interpolation, weights_hash="x",
        state=tmp_path,
    )  # fmt: skip
    chosen = settings.model_dump(exclude={"preset", "crops", "crop_interpolation"})
    seen: list[tuple[int, int]] = []
    result = few_shot(
        case.features, train.labels, case.test_features, test.labels, **chosen, crops=crops, predict=True,
        progress=lambda *at: seen.append(at),
    )  # fmt: skip
    best = [plain_epochs(case, draw_single_label(train.labels, 10, 0, run), run) for run in range(2)]
    assert result.values["top1@10"] == pytest.approx(np.mean([max(epochs) for epochs in best]), abs=1e-12)
    assert any(max(epochs) > epochs[-1] for epochs in best), "the last epoch is always the best: nothing is tested"
    assert result.settings["crop_interpolation"] == "bilinear"
    assert np.mean(result.predicted["@10 run 1"].classes == test.labels) == max(best[1])
    images = 20 * 2 * (2 * 7 + 10 * 7)
    assert seen[-1] == (images, images)
    seen.clear()
    again = few_shot(
        case.features, train.labels, case.test_features, test.labels, **chosen, crops=crops,
        progress=lambda *at: seen.append(at),
    )  # fmt: skip
    assert again.values == result.values
    assert len(seen) == 4, "what was trained before is not trained again"
    last = few_shot(
        case.features, train.labels, case.test_features, test.labels, crops=crops, **chosen | {"best_epoch": False}
    )
    assert last.values["top1@10"] == pytest.approx(np.mean([epochs[-1] for epochs in best]), abs=1e-12)


def plain_epochs(case: Case, rows: np.ndarray, run: int) -> list[float]:
    """Accuracy on the test images after every epoch, in a loop of PyTorch over one crop at a time."""
    layer = nn.Linear(case.features.shape[1], CLASSES)
    start = LinearGrid([Classifier("sgd", 0.3)], case.features.shape[1], CLASSES, seed=run)
    layer.load_state_dict({"weight": start.weight_SCF[0], "bias": start.bias_SC[0]})
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [12, 18])
    found = []
    for epoch in range(20):
        crops = [
            batch_views(
                case.train.images[[i]], [crop_and_flip(32, "bilinear")], seed=run, epoch=epoch, indices=np.array([i])
            )[0]
            for i in rows
        ]
        with torch.no_grad():
            features = case.encoder.eval()(normalise(torch.cat(crops), CPU))
        optimiser.zero_grad()
        F.cross_entropy(layer(features), torch.from_numpy(case.train.labels[rows])).backward()
        optimiser.step()
        schedule.step()
        found.append(top1_of(layer, case.test_features, case.test.labels))
    return found


def plain_area(shown: np.ndarray, scores: np.ndarray) -> float:
    ranked = shown[np.argsort(-scores)]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return float(np.mean([precision[i:].max() for i in np.flatnonzero(ranked)]))


def test_machines_equal_the_reference_protocol() -> None:
    x, y, test, truth = data = several()
    result = few_shot(*data, shots=(4,), runs=2, seed=5)
    units = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, test)]
    for run in range(2):
        rows = draw_multi_label(y > 0, 4, 5, run)
        areas = []
        for label in range(4):
            target = np.where(y[rows, label] > 0, 1, -1)
            machine = svm.LinearSVC(C=0.5, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0)
            machine.fit(units[0][rows], target)
            areas.append(plain_area(truth[:, label] > 0, machine.decision_function(units[1])))
        assert result.details["4"][run]["map"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert result.values["map@4"] == np.mean([row["map"] for row in result.details["4"]])
    assert 0 < result.values["map11@4"] <= 1


def test_more_images_are_better() -> None:
    values = few_shot(*several(), shots=(1, 16, "full"), runs=3).values
    assert values["map@1"] < values["map@16"] < values["map@full"]


def test_a_draw_without_negatives_is_an_error() -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros((20, 2), dtype=np.int64)
    labels[:10, 0] = 1
    labels[0, 1] = 1
    x = rng.standard_normal((20, 3)).astype(np.float32)
    with pytest.raises(DataError, match="images of a draw show class 0"):
        few_shot(x, labels, x, labels, shots=(2,), runs=1)


def relu_features(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """20 classes, features like those of a ResNet: none is negative."""
    rng = np.random.default_rng(0)
    centres, labels = rng.standard_normal((20, 64)), np.arange(count) % 20
    return np.maximum(centres[labels] + 1.5 * rng.standard_normal((count, 64)), 0).astype(np.float32), labels


def test_the_number_of_images_in_the_last_batch_is_no_matter() -> None:
    x, y = relu_features(3000)
    found = {
        count: few_shot(x[:count], y[:count], x[1000:], y[1000:], shots=["full"]).values["top1@full"]
        for count in (768, 769, 770, 781)  # three batches of 256, and 1, 2 and 13 images more
    }
    assert max(found.values()) - min(found.values()) < 0.01, found


def test_predictions_are_right_as_often_as_reported() -> None:
    x, y = relu_features(400)
    result = few_shot(x[:200], y[:200], x[200:], y[200:], shots=[1, "full"], runs=2, predict=True)
    assert list(result.predicted) == ["@1 run 0", "@1 run 1", "@full"]
    for end, value in (("@1 run 0", result.details["1"][0]["top1"]), ("@full", result.values["top1@full"])):
        assert (result.predicted[end].classes == y[200:]).mean() == pytest.approx(value)
    several = np.eye(20, dtype=np.int64)[y]
    with pytest.raises(ConfigError, match="several labels"):
        few_shot(x[:200], several[:200], x[200:], several[200:], predict=True)
