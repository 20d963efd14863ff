"""Linear classifiers on stored features: the paper's linear evaluation without augmentation, in minutes.

Shapes: N images, F features.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from carp.evaluation.feature_arrays import Features, Labels, check_classes, check_pair
from carp.evaluation.linear.best_epochs import BestEpochs
from carp.evaluation.linear.choice import (
    LRS,
    OPTIMISERS,
    WEIGHT_DECAYS,
    ChooseOn,
    LrScaling,
    best_classifier,
    choose_held_out,
    linear_result,
    recorded,
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
    predictions_of,
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
    lr_scaling: LrScaling = "linear",
    batch_size: int = 256,
    choose_on: ChooseOn = "held-out",
    held_out: float = 0.1,
    seed: int = 0,
    predict: bool = False,
    progress: Progress = lambda _done, _all: None,
) -> Result:
    """Train a grid of linear classifiers on training features [N, F] and report the best.

    A part of the training images is held out to select a classifier, which is then trained again on all training images
    and tested, so that the test images select nothing; or they select classifier and epoch, and nothing is held out.
    Under torchrun every process trains a share of the classifiers.

    Args:
        train: Training features.
        train_labels: Their classes.
        test: Test features.
        test_labels: Their classes.
        optimisers: Optimisers of the grid.
        lrs: Learning rates of the grid.
        weight_decays: Weight decays of the grid.
        epochs: Passes over the training features.
        lr_scaling: `linear` multiplies the learning rates by batch_size / 256.
        batch_size: Images per step.
        choose_on: `held-out`, or `test`: the best epoch of the best classifier on the test images.
        held_out: Share of every class that selects the classifier.
        seed: Seed of the initial weights, the order and the images held out.
        predict: Also return a prediction for every test image.
        progress: Called with (done, all) epochs: those of the grid, then those of a chosen classifier.

    Returns:
        `top1`, with more than five classes `top5`, and `mean_per_class` of the chosen classifier. The details hold the
        grid, as it was trained without the images held out, or with its best epochs.
    """
    classifiers = scaled_grid(optimisers, lrs, weight_decays, batch_size, lr_scaling)
    check_pair(train, test)
    labels, truth, num_classes = check_classes(train, train_labels, test, test_labels)
    all_rows, of_test = np.arange(len(train)), partial(in_order, test, truth, np.arange(len(test)))
    chooses = choose_held_out(labels, held_out, seed) if choose_on == "held-out" else None
    trainings = 1 if chooses is None else 2

    def trained(chosen: Sequence[Classifier], rows: Rows, done: int = 0) -> tuple[LinearGrid, list[int]]:
        grid = LinearGrid(chosen, train.shape[1], num_classes, seed=seed)
        best = BestEpochs(grid, of_test) if chooses is None else None

        def after_epoch(epoch: int) -> None:
            if best is not None:
                best.after_epoch(epoch)
            progress(done + epoch + 1, trainings * epochs)

        batches = shuffled(train, labels, rows, batch_size=batch_size, seed=seed)
        fit(grid, batches, epochs=epochs, lr_factor=cosine(epochs), after_epoch=after_epoch)
        return grid, [] if best is None else best.restore()

    grid, best_epochs = trained(own_classifiers(classifiers), all_rows if chooses is None else all_rows[~chooses])
    tested = grid.accuracy(of_test()).of_all()
    held_top1 = None
    if chooses is None:
        best = best_classifier(tested.top1)
        chosen = tested.of(best, num_classes)
        predicted = predictions_of(grid, best, len(classifiers), of_test()) if predict else None
    else:
        held_top1 = grid.accuracy(in_order(train, labels, all_rows[chooses])).of_all().top1
        final, _ = trained([classifiers[best_classifier(held_top1)]], all_rows, epochs)
        chosen = final.accuracy(of_test()).of(0, num_classes)
        predicted = final.predict(of_test(), 0) if predict else None
    return linear_result(
        classifiers,
        held_top1=held_top1,
        best_epochs=join_classifiers(best_epochs) if chooses is None else None,
        tested=tested,
        finite=join_classifiers(grid.finite().tolist()),
        chosen=chosen,
        settings=recorded(
            optimisers, lrs, weight_decays, lr_scaling, epochs, batch_size, choose_on, held_out, seed, cached=True
        ),
        all_final=False,
        predicted=predicted,
    )
