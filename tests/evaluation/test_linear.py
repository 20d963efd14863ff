"""The grid against one torch optimiser per classifier; the probe against its promises."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from carp.errors import ConfigError
from carp.evaluation.linear.choice import choose_held_out, scaled_grid
from carp.evaluation.linear.grid import Classifier, LinearGrid, cosine, fit, in_order, shuffled
from carp.evaluation.linear.probe import linear_probe
from carp.training.optimiser import LARS

EPOCHS = 6


def make(num_images: int = 400, num_classes: int = 7, *, noise: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(num_images) % num_classes
    x = rng.standard_normal((num_classes, 10))[labels] + noise * rng.standard_normal((num_images, 10))
    half = num_images // 2
    return [x[:half].astype(np.float32), labels[:half], x[half:].astype(np.float32), labels[half:]]


def alone(classifier: Classifier, x: np.ndarray, y: np.ndarray) -> nn.Linear:
    """One classifier as a loop of PyTorch: autograd, an optimiser, a schedule."""
    layer = nn.Linear(x.shape[1], 7)
    start = LinearGrid([classifier], x.shape[1], 7, seed=1)
    layer.load_state_dict({"weight": start.weight_SCF[0], "bias": start.bias_SC[0]})
    groups = [
        {"params": [layer.weight], "weight_decay": classifier.weight_decay},
        {"params": [layer.bias], "weight_decay": 0.0, **({"adapt": False} if classifier.optimiser == "lars" else {})},
    ]
    optimiser: torch.optim.Optimizer
    if classifier.optimiser == "lars":
        optimiser = LARS(groups, lr=classifier.lr)
    else:
        optimiser = torch.optim.SGD(groups, lr=classifier.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    batches = shuffled(x, y, np.arange(len(x)), batch_size=32, seed=2)
    for epoch in range(EPOCHS):
        for features, labels in batches(epoch):
            optimiser.zero_grad()
            F.cross_entropy(layer(features), labels).backward()
            optimiser.step()
        schedule.step()
    return layer


def test_members_equal_their_own_optimisers() -> None:
    x, y, test, truth = make()
    uneven = np.flatnonzero((truth > 1) | (np.arange(len(truth)) % 3 == 0))  # classes of different size
    test, truth = test[uneven], truth[uneven]
    classifiers = scaled_grid(("sgd", "lars"), (0.01, 0.3, 3.0), (0.0, 1e-2), 256)
    grid = LinearGrid(classifiers, 10, 7, seed=1)
    fit(grid, shuffled(x, y, np.arange(len(x)), batch_size=32, seed=2), epochs=EPOCHS, lr_factor=cosine(EPOCHS))
    found = grid.accuracy(in_order(test, truth, np.arange(len(test)), batch_size=33))
    for i, classifier in enumerate(classifiers):
        layer = alone(classifier, x, y)
        assert torch.allclose(grid.weight_SCF[i], layer.weight, rtol=1e-4, atol=1e-5), classifier
        assert torch.allclose(grid.bias_SC[i], layer.bias, rtol=1e-4, atol=1e-5), classifier
        logits = layer(torch.from_numpy(test)).detach().numpy()
        assert found.top1[i] == np.mean(logits.argmax(axis=1) == truth)
        per_class = [np.mean(logits[truth == c].argmax(axis=1) == c) for c in range(7)]
        assert found.mean_per_class[i] == pytest.approx(np.mean(per_class), abs=1e-12)
        ranks = (logits > logits[np.arange(len(truth)), truth][:, None]).sum(axis=1)
        assert found.top5[i] == np.mean(ranks < 5)
    assert len({round(t, 3) for t in found.top1}) > 3, "classifiers must differ"
    assert found.mean_per_class != pytest.approx(found.top1, abs=1e-3), "classes of different size must matter"


def test_an_interrupted_grid_ends_the_same() -> None:
    x, y, _, _ = make()
    classifiers = scaled_grid(("sgd", "lars"), (0.1,), (0.0, 1e-4), 256)
    batches = shuffled(x, y, np.arange(len(x)), batch_size=64, seed=0)
    whole, first, second = (LinearGrid(classifiers, 10, 7) for _ in range(3))
    fit(whole, batches, epochs=4, lr_factor=cosine(4))
    saved: dict[str, torch.Tensor] = {}

    def save(epoch: int) -> None:
        if epoch == 1:
            saved.update({name: value.clone() for name, value in first.state_dict().items()})

    fit(first, batches, epochs=3, lr_factor=cosine(4), after_epoch=save)
    second.load_state_dict(saved)
    fit(second, lambda epoch: batches(epoch + 2), epochs=2, lr_factor=lambda epoch: cosine(4)(epoch + 2))
    assert torch.equal(second.weight_SCF, whole.weight_SCF)
    assert torch.equal(second.bias_SC, whole.bias_SC)


def test_a_classifier_that_diverges_harms_no_other() -> None:
    x, y, test, truth = make()
    settings = {"lrs": (1e-3, 1e38), "optimisers": ("sgd",), "weight_decays": (0.0,), "epochs": 3}
    result = linear_probe(100 * x, y, test, truth, **settings)
    good, bad = result.details["grid"]
    assert bad["diverged"]
    assert bad["test_mean_per_class"] == 0
    assert bad["test_top1"] == bad["held_out_top1"] == 0
    assert good["test_top1"] > 0.5
    assert result.details["chosen"] == good


def test_the_probe_chooses_by_what_was_held_out() -> None:
    x, y, test, truth = make()
    result = linear_probe(x, y, test, truth, epochs=5)
    rows = result.details["grid"]
    assert len(rows) == 40
    assert result.details["chosen"]["held_out_top1"] == max(row["held_out_top1"] for row in rows)
    assert "best_top1_on_test" not in result.values, "the grid was trained without the images held out"
    other = linear_probe(x, y, test, (truth + 1) % 7, epochs=5)  # test labels decide nothing
    unseen = {"test_top1": 0, "test_mean_per_class": 0}
    assert {**other.details["chosen"], **unseen} == {**result.details["chosen"], **unseen}
    assert linear_probe(x, y, test, truth, epochs=5).values == result.values


def test_the_probe_tells_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    linear_probe(*make(), epochs=3, lrs=(0.1,), progress=lambda *at: seen.append(at))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_the_chosen_classifier_is_trained_on_everything() -> None:
    x, y, test, truth = make()
    one = {"optimisers": ("sgd",), "lrs": (0.1,), "weight_decays": (0.0,), "epochs": 5, "seed": 3}
    grid = LinearGrid([Classifier("sgd", 0.1)], 10, 7, seed=3)
    fit(grid, shuffled(x, y, np.arange(len(x)), batch_size=256, seed=3), epochs=5, lr_factor=cosine(5))
    found = grid.accuracy(in_order(test, truth, np.arange(len(test))))
    result = linear_probe(x, y, test, truth, predict=True, **one)
    values = result.values
    assert (result.predicted[""].classes == truth).mean() == pytest.approx(values["top1"])
    assert not linear_probe(x, y, test, truth, **one).predicted
    assert ([values["top1"]], [values["top5"]]) == (found.top1, found.top5)
    assert [values["mean_per_class"]] == found.mean_per_class


def test_reaches_a_converged_logistic_regression() -> None:
    models = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    x, y, test, truth = make(12_000, noise=1.8)
    best = models.LogisticRegression(C=1e6, max_iter=1000).fit(x, y).score(test, truth)
    assert 0.5 < best < 0.9
    result = linear_probe(x, y, test, truth, epochs=10)
    values = result.values
    assert max(row["test_top1"] for row in result.details["grid"]) == pytest.approx(best, abs=0.01)
    assert values["top1"] == pytest.approx(best, abs=0.02)  # 600 images choose: they do not always find the very best


def test_held_out_part() -> None:
    labels = np.repeat([0, 1, 2], [100, 20, 1])
    marked = choose_held_out(labels, 0.1, seed=0)
    assert np.bincount(labels[marked], minlength=3).tolist() == [10, 2, 0]
    assert (choose_held_out(labels, 0.1, seed=0) == marked).all()
    assert (choose_held_out(labels, 0.1, seed=1) != marked).any()
    assert choose_held_out(np.array([0, 1, 1]), 0.1, seed=0).sum() == 1
    with pytest.raises(ConfigError, match=r"only one training image\. Add images"):
        choose_held_out(np.array([0, 1]), 0.1, seed=0)


def test_a_class_without_test_images_does_not_count() -> None:
    x, y, test, truth = make()
    without = truth != 3
    grid = LinearGrid([Classifier("sgd", 0.1)], 10, 7)
    fit(grid, shuffled(x, y, np.arange(len(x)), batch_size=32, seed=2), epochs=2, lr_factor=cosine(2))
    found = grid.accuracy(in_order(test[without], truth[without], np.arange(without.sum())))
    right = grid.logits(torch.from_numpy(test[without]))[:, 0].argmax(dim=1).numpy() == truth[without]
    per_class = [np.mean(right[truth[without] == c]) for c in (0, 1, 2, 4, 5, 6)]
    assert found.mean_per_class[0] == pytest.approx(np.mean(per_class), abs=1e-12)


def test_the_test_images_choose_classifier_and_epoch_where_that_is_asked_for() -> None:
    x, y, test, truth = make(noise=2.0)
    seen: list[tuple[int, int]] = []
    settings = {"optimisers": ("sgd",), "lrs": (0.03, 3.0), "weight_decays": (0.0,), "batch_size": 32, "seed": 1}
    result = linear_probe(
        x, y, test, truth, **settings, epochs=8, choose_on="test", predict=True, progress=lambda *at: seen.append(at)
    )
    grid = LinearGrid([Classifier("sgd", lr * 32 / 256) for lr in (0.03, 3.0)], 10, 7, seed=1)
    top1: list[list[float]] = []
    every = np.arange(len(test))
    fit(
        grid,
        shuffled(x, y, np.arange(len(x)), batch_size=32, seed=1),
        epochs=8,
        lr_factor=cosine(8),
        after_epoch=lambda _: top1.append(grid.accuracy(in_order(test, truth, every)).top1),
    )
    best = np.array(top1).max(axis=0)
    assert [row["test_top1"] for row in result.details["grid"]] == best.tolist()
    assert [row["best_epoch"] for row in result.details["grid"]] == (np.array(top1).argmax(axis=0) + 1).tolist()
    assert result.values["top1"] == best.max() == np.mean(result.predicted[""].classes == truth)
    assert any(row["best_epoch"] < 8 for row in result.details["grid"])
    assert seen[-1] == (8, 8), "nothing is trained twice"
    assert result.settings["held_out"] is None
    scaled = linear_probe(x, y, test, truth, **settings | {"lrs": (0.03 * 32 / 256,)}, epochs=2, lr_scaling="none")
    assert scaled.values == linear_probe(x, y, test, truth, **settings | {"lrs": (0.03,)}, epochs=2).values
