"""Linear classifiers on stored features: the paper's linear evaluation without augmentation, in seconds.

Shapes: N images, F features.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carp.data.random import Purpose, key
from carp.errors import ConfigError
from carp.evaluation.inputs import Features, Labels, check_classes, check_pair
from carp.evaluation.linear_grid import (
    LinearGrid,
    Member,
    OptimiserName,
    Rows,
    cosine,
    fit,
    in_order,
    make_grid,
    shuffled,
)
from carp.evaluation.result import Result

LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)


def linear_probe(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    optimisers: Sequence[OptimiserName] = ("sgd", "lars"),
    lrs: Sequence[float] = LRS,
    weight_decays: Sequence[float] = (0.0, 1e-6),
    epochs: int = 100,
    batch_size: int = 256,
    held_out: float = 0.1,
    seed: int = 0,
) -> Result:
    """Train a grid of linear classifiers on training features [N, F] and report the best.

    A part of the training images is held out to choose the member; the chosen one is trained again on all of them and
    tested. The test images choose nothing.

    Args:
        train: Training features.
        train_labels: Their classes.
        test: Test features.
        test_labels: Their classes.
        optimisers: Of the grid.
        lrs: Learning rates of the grid, for 256 images: multiplied by batch_size / 256.
        weight_decays: Of the grid.
        epochs: Passes over the training features.
        batch_size: Images a step.
        held_out: Share of every class that chooses the member.
        seed: Of the first weights, the order and the part held out.

    Returns:
        `top1`, with more than five classes `top5`, and `mean_per_class` of the chosen member; `best_top1_on_test`, the
        largest of the grid, which is what the paper's reference reports and is too good by the choice. The details
        hold the grid.
    """
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out must lie between 0 and 1, received {held_out}.")
    if epochs < 1 or batch_size < 1:
        raise ConfigError(f"epochs and batch_size must be at least 1, received {epochs} and {batch_size}.")
    members = make_grid(optimisers, [lr * batch_size / 256 for lr in lrs], weight_decays)
    check_pair(train, test)
    labels, truth, num_classes = check_classes(train, train_labels, test, test_labels)
    chooses = choose_held_out(labels, held_out, seed)
    all_rows, test_rows = np.arange(len(train)), np.arange(len(test))

    def trained(chosen: Sequence[Member], rows: Rows) -> LinearGrid:
        grid = LinearGrid(chosen, train.shape[1], num_classes, seed=seed)
        batches = shuffled(train, labels, rows, batch_size=batch_size, seed=seed)
        fit(grid, batches, epochs=epochs, lr_factor=cosine(epochs))
        return grid

    grid = trained(members, all_rows[~chooses])
    held = grid.accuracy(in_order(train, labels, all_rows[chooses]))
    tested = grid.accuracy(in_order(test, truth, test_rows))
    best = int(np.argmax(held.top1))  # of equals the first
    final = trained([members[best]], all_rows).accuracy(in_order(test, truth, test_rows))

    values = {
        "top1": final.top1[0],
        **({"top5": final.top5[0]} if num_classes > 5 else {}),
        "mean_per_class": final.mean_per_class[0],
        "best_top1_on_test": max(tested.top1),
    }
    rows = [
        {
            "optimiser": member.optimiser,
            "lr": member.lr,
            "weight_decay": member.weight_decay,
            "held_out_top1": held.top1[i],
            "test_top1": tested.top1[i],
            "test_mean_per_class": tested.mean_per_class[i],
            "diverged": not finite,
        }
        for i, (member, finite) in enumerate(zip(members, grid.finite().tolist(), strict=True))
    ]
    settings = {"epochs": epochs, "batch_size": batch_size, "held_out": held_out, "seed": seed, "cached": True}
    return Result("linear", values, settings, details={"chosen": rows[best], "grid": rows})


def choose_held_out(labels: Labels, share: float, seed: int) -> NDArray[np.bool_]:
    """Mark about this share of every class, rounded; a class keeps at least one image, and one at least is marked."""
    marked = np.zeros(len(labels), dtype=bool)
    hashes = key(seed, Purpose.BANK, np.arange(len(labels)))
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
