"""What both linear evaluations share: the grid, the images that select a classifier, and the result."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError
from carp.evaluation.feature_arrays import Labels
from carp.evaluation.linear.grid import Accuracies, Member, OptimiserName
from carp.evaluation.result import Predicted, Result, only
from carp.random import Purpose, key

OPTIMISERS: tuple[OptimiserName, ...] = ("sgd", "lars")
LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
WEIGHT_DECAYS = (0.0, 1e-6)


def scaled_grid(
    optimisers: Sequence[OptimiserName],
    lrs: Sequence[float],
    weight_decays: Sequence[float],
    batch_size: int,
) -> list[Member]:
    """All combinations, the learning rates multiplied by batch_size / 256."""
    scaled = [lr * batch_size / 256 for lr in lrs]
    return [Member(name, float(lr), float(wd)) for name, lr, wd in itertools.product(optimisers, scaled, weight_decays)]


def choose_held_out(labels: Labels, share: float, seed: int) -> NDArray[np.bool_]:
    """Mark about this share of every class, rounded; a class keeps at least one image, and one at least is marked."""
    marked = np.zeros(len(labels), dtype=bool)
    hashes = key(seed, Purpose.HELD_OUT, np.arange(len(labels)))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        count = min(round(share * len(own)), len(own) - 1)
        marked[own[np.argsort(hashes[own], kind="stable")[:count]]] = True
    if not marked.any():  # every class is tiny: the largest gives one
        own = np.flatnonzero(labels == np.bincount(labels).argmax())
        if len(own) < 2:
            raise ConfigError("the linear probe needs a class with at least two training images to choose from.")
        marked[own[np.argmin(hashes[own])]] = True
    return marked


def best_member(held_top1: Sequence[float]) -> int:
    """The member that is best on the images held out; of equals the first."""
    return int(np.argmax(held_top1))


def linear_result(
    members: Sequence[Member],
    *,
    held_top1: Sequence[float],
    tested: Accuracies,
    finite: Sequence[bool],
    chosen: dict[str, float],
    settings: dict[str, Any],
    all_final: bool,
    predicted: Predicted | None = None,
) -> Result:
    """Values of the chosen member (`top1`, …) and the whole grid.

    With `all_final` every member in `tested` was trained on all images, as the chosen one was. Then the largest top-1
    on the test images is a value of its own, never below `top1`.
    """
    rows = [
        {
            "optimiser": member.optimiser,
            "lr": member.lr,
            "weight_decay": member.weight_decay,
            "held_out_top1": held,
            "test_top1": tested.top1[i],
            "test_mean_per_class": tested.mean_per_class[i],
            "diverged": not kept,
        }
        for i, (member, held, kept) in enumerate(zip(members, held_top1, finite, strict=True))
    ]
    values = chosen | ({"best_top1_on_test": max(tested.top1)} if all_final else {})
    details = {"chosen": rows[best_member(held_top1)], "grid": rows}
    return Result(values=values, settings=settings, details=details, predicted=only(predicted))
