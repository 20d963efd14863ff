"""Linear classifiers on stored features: the paper's linear evaluation without augmentation, in minutes.

Shapes: N images, F features.
"""

from collections.abc import Sequence

import numpy as np

from carp.evaluation.feature_arrays import Features, Labels, check_classes, check_pair
from carp.evaluation.linear.choice import (
    LRS,
    OPTIMISERS,
    WEIGHT_DECAYS,
    best_classifier,
    choose_held_out,
    linear_result,
    scaled_grid,
)
from carp.evaluation.linear.grid import (
    Classifier,
    LinearGrid,
    OptimiserName,
    Rows,
    cosine,
    fit,
    in_order,
    join_classifiers,
    own_classifiers,
    shuffled,
)
from carp.evaluation.result import Result
from carp.features.extract import Progress


def linear_probe(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    optimisers: Sequence[OptimiserName] = OPTIMISERS,
    lrs: Sequence[float] = LRS,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    epochs: int = 100,
    batch_size: int = 256,
    held_out: float = 0.1,
    seed: int = 0,
    predict: bool = False,
    progress: Progress = lambda _done, _all: None,
) -> Result:
    """Train a grid of linear classifiers on training features [N, F] and report the best.

    A part of the training images is held out to select a classifier, which is then trained again on all training images
    and tested. The test images select nothing. Under torchrun every process trains a share of the classifiers.

    Args:
        train: Training features.
        train_labels: Their classes.
        test: Test features.
        test_labels: Their classes.
        optimisers: Optimisers of the grid.
        lrs: Learning rates of the grid, for 256 images: multiplied by batch_size / 256.
        weight_decays: Weight decays of the grid.
        epochs: Passes over the training features.
        batch_size: Images per step.
        held_out: Share of every class that selects the classifier.
        seed: Seed of the initial weights, the order and the images held out.
        predict: Also return a prediction for every test image.
        progress: Called with (done, all) epochs: those of the grid, then those of the chosen classifier.

    Returns:
        `top1`, with more than five classes `top5`, and `mean_per_class` of the chosen classifier. The details hold the
        grid, as it was trained without the images held out.
    """
    classifiers = scaled_grid(optimisers, lrs, weight_decays, batch_size)
    check_pair(train, test)
    labels, truth, num_classes = check_classes(train, train_labels, test, test_labels)
    chooses = choose_held_out(labels, held_out, seed)
    all_rows, test_rows = np.arange(len(train)), np.arange(len(test))

    def trained(chosen: Sequence[Classifier], rows: Rows, done: int) -> LinearGrid:
        grid = LinearGrid(chosen, train.shape[1], num_classes, seed=seed)
        fit(
            grid,
            shuffled(train, labels, rows, batch_size=batch_size, seed=seed),
            epochs=epochs,
            lr_factor=cosine(epochs),
            after_epoch=lambda epoch: progress(done + epoch + 1, 2 * epochs),
        )
        return grid

    grid = trained(own_classifiers(classifiers), all_rows[~chooses], 0)
    held = grid.accuracy(in_order(train, labels, all_rows[chooses])).of_all()
    tested = grid.accuracy(in_order(test, truth, test_rows)).of_all()
    best = best_classifier(held.top1)
    final = trained([classifiers[best]], all_rows, epochs)
    return linear_result(
        classifiers,
        held_top1=held.top1,
        tested=tested,
        finite=join_classifiers(grid.finite().tolist()),
        chosen=final.accuracy(in_order(test, truth, test_rows)).of(0, num_classes),
        settings={"epochs": epochs, "batch_size": batch_size, "held_out": held_out, "seed": seed, "cached": True},
        all_final=False,
        predicted=final.predict(in_order(test, truth, test_rows), 0) if predict else None,
    )
