"""What both linear evaluations share: the grid, the images that select a classifier, and the result."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError
from carp.evaluation.feature_arrays import Labels
from carp.evaluation.linear.grid import Accuracies, Classifier, OptimiserName
from carp.evaluation.result import Predicted, Result, only
from carp.random import Purpose, key

OPTIMISERS: tuple[OptimiserName, ...] = ("sgd", "lars")
LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
WEIGHT_DECAYS = (0.0, 1e-6)
LrScaling = Literal["linear", "none"]
ChooseOn = Literal["held-out", "test"]


def scaled_grid(
    optimisers: Sequence[OptimiserName],
    lrs: Sequence[float],
    weight_decays: Sequence[float],
    batch_size: int,
    lr_scaling: LrScaling = "linear",
) -> list[Classifier]:
    """Return all combinations, the learning rates multiplied by batch_size / 256 unless `lr_scaling` is `none`."""
    scaled = [lr * batch_size / 256 for lr in lrs] if lr_scaling == "linear" else lrs
    return [
        Classifier(name, float(lr), float(wd)) for name, lr, wd in itertools.product(optimisers, scaled, weight_decays)
    ]


def recorded(
    optimisers: Sequence[OptimiserName],
    lrs: Sequence[float],
    weight_decays: Sequence[float],
    lr_scaling: LrScaling,
    epochs: int,
    batch_size: int,
    choose_on: ChooseOn,
    held_out: float,
    seed: int,
    *,
    cached: bool,
) -> dict[str, Any]:
    """Return the settings that results record."""
    return {
        "optimisers": list(optimisers),
        "lrs": list(lrs),
        "weight_decays": list(weight_decays),
        "lr_scaling": lr_scaling,
        "epochs": epochs,
        "batch_size": batch_size,
        "choose_on": choose_on,
        "held_out": held_out if choose_on == "held-out" else None,
        "seed": seed,
        "cached": cached,
    }


def choose_held_out(labels: Labels, share: float, seed: int) -> NDArray[np.bool_]:
    """Mark about this share of every class; a class keeps at least one image, and at least one image is marked."""
    marked = np.zeros(len(labels), dtype=bool)
    hashes = key(seed, Purpose.HELD_OUT, np.arange(len(labels)))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        count = min(round(share * len(own)), len(own) - 1)
        marked[own[np.argsort(hashes[own], kind="stable")[:count]]] = True
    if not marked.any():  # every class is tiny: one of the largest class
        own = np.flatnonzero(labels == np.bincount(labels).argmax())
        if len(own) < 2:
            raise ConfigError("no images can be held out, because every class has only one training image. Add images.")
        marked[own[np.argmin(hashes[own])]] = True
    return marked


def best_classifier(top1: Sequence[float]) -> int:
    """Return the index of the best classifier on the images that select it; the first one if several are equal."""
    return int(np.argmax(top1))


def linear_result(
    classifiers: Sequence[Classifier],
    *,
    held_top1: Sequence[float] | None,
    best_epochs: Sequence[int] | None = None,
    tested: Accuracies,
    finite: Sequence[bool],
    chosen: dict[str, float],
    settings: dict[str, Any],
    all_final: bool,
    predicted: Predicted | None = None,
) -> Result:
    """Return the values of the chosen classifier (`top1`, …) and the whole grid.

    The classifier was chosen on the held-out images, or on the test images, each classifier after its best epoch. With
    `all_final`, every classifier in `tested` was trained on all images, like the chosen one. Then the largest top-1 on
    the test images is also reported; it is never below `top1`.
    """
    rows = [
        {
            "optimiser": classifier.optimiser,
            "lr": classifier.lr,
            "weight_decay": classifier.weight_decay,
            **({} if held_top1 is None else {"held_out_top1": held_top1[i]}),
            **({} if best_epochs is None else {"best_epoch": best_epochs[i]}),
            "test_top1": tested.top1[i],
            "test_mean_per_class": tested.mean_per_class[i],
            "diverged": not kept,
        }
        for i, (classifier, kept) in enumerate(zip(classifiers, finite, strict=True))
    ]
    values = chosen | ({"best_top1_on_test": max(tested.top1)} if all_final else {})
    details = {"chosen": rows[best_classifier(tested.top1 if held_top1 is None else held_top1)], "grid": rows}
    return Result(values=values, settings=settings, details=details, predicted=only(predicted))
