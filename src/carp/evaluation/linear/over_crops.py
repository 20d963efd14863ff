"""The paper's linear evaluation: linear classifiers on a frozen encoder that sees random crops and flips.

All classifiers of the grid train on one pass of the encoder. Two grids share it. One does not see the images that are
held out; its accuracy on them selects a classifier. The other sees all images, and its classifier with the same
settings is tested. So nothing is trained twice, and the test images select nothing. If the test images select the
classifier, as in published evaluations, there is one grid. Under torchrun every process encodes its share of a step's
images and trains its share of the classifiers on all of them.

Shapes: N images, B images of a step, F features.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from carp.errors import DataError
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
from carp.evaluation.linear.crop_training import CropTraining, digest
from carp.evaluation.linear.grid import (
    LinearGrid,
    OptimiserName,
    cosine,
    join_classifiers,
    own_classifiers,
    predictions_of,
)
from carp.evaluation.linear.grid_training import OneGrid, Precision, TwoGrids
from carp.evaluation.result import Result
from carp.features.extract import Progress
from carp.images.source import Source
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation


def linear_on_images(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    encoder: nn.Module,
    source: Source,
    indices: NDArray[np.int64] | None = None,
    size: int,
    device: torch.device,
    precision: Precision = "fp32",
    workers: int = 2,
    optimisers: Sequence[OptimiserName] = OPTIMISERS,
    lrs: Sequence[float] = LRS,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    epochs: int = 100,
    lr_scaling: LrScaling = "linear",
    batch_size: int = 256,
    choose_on: ChooseOn = "held-out",
    held_out: float = 0.1,
    crop_interpolation: Interpolation = DEFAULT_INTERPOLATION,
    seed: int = 0,
    weights_hash: str = "",
    state: Path | None = None,
    save_seconds: float = 120.0,
    predict: bool = False,
    progress: Progress = lambda _done, _all: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Result:
    """Train a grid of linear classifiers on random crops of the training images, and report the best.

    Args:
        train: Features [N, F] of the training images with the evaluation transform; the held-out ones select the
            classifier.
        train_labels: Their classes.
        test: Features of the test images, by the same encoder and transform.
        test_labels: Their classes.
        encoder: Images [B, 3, size, size] to features [B, F].
        source: The training images.
        indices: Which image of `source` each row of `train` is; without it, row n is image n. Other images are not
            used.
        size: Side of the crops.
        device: Device of the encoder and the grid.
        precision: Precision of the encoder; the classifiers are always float32.
        workers: Processes that decode photographs.
        optimisers: Optimisers of the grid.
        lrs: Learning rates of the grid.
        weight_decays: Weight decays of the grid.
        epochs: Passes over the training images.
        lr_scaling: `linear` multiplies the learning rates by batch_size / 256.
        batch_size: Images per step.
        choose_on: `held-out` chooses a classifier on training images that are held out, after the last epoch. `test`
            chooses classifier and epoch on the test images, as published evaluations do; nothing is held out.
        held_out: Share of every class that selects the classifier.
        crop_interpolation: How crops are resized.
        seed: Seed of the initial weights, the order, the crops and the images held out.
        weights_hash: Identifies the encoder, so that a state is only resumed with the encoder that it belongs to.
        state: A folder that keeps the state, so that the same call resumes after an interruption; the results are the
            same bit for bit (with the same number of threads). Remove it once the result is stored.
        save_seconds: Time between two saves.
        predict: Also return a prediction for every test image.
        progress: Called with (done, all) images, counted over the epochs.
        warn: Called with one line about images that could not be read, or about a damaged state.

    Returns:
        The same as `linear_probe`. With images held out also `best_top1_on_test`, the largest `test_top1` of the grid,
        which is optimistic, because the test images select the classifier; in the grid, `held_out_top1` then belongs to
        the classifier that did not see the images held out, `test_top1` to the one that saw all.
    """
    classifiers = scaled_grid(optimisers, lrs, weight_decays, batch_size, lr_scaling)
    check_pair(train, test)
    labels, truth, num_classes = check_classes(train, train_labels, test, test_labels)
    images = _images_of_rows(indices, len(train), source)
    training = CropTraining(
        encoder, source, size, device, precision, workers, crop_interpolation, weights_hash, state, save_seconds, warn
    )
    fit = partial(
        training.run,
        classifiers=classifiers,
        images=images,
        labels=labels,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        lr_factor=cosine(epochs),
        progress=progress,
    )
    own, of_test = own_classifiers(classifiers), partial(training.batches, test, truth)
    held_top1, best_epochs = None, None
    if choose_on == "test":
        final = LinearGrid(own, train.shape[1], num_classes, seed=seed, device=str(device))
        best_of = BestEpochs(final, of_test)
        fit(OneGrid(final, best_of), also={"tested": [digest(test), digest(truth)]})
        best_epochs = join_classifiers(best_of.restore())
        kept = join_classifiers(final.finite().tolist())
    else:
        chooses = choose_held_out(labels, held_out, seed)
        both = TwoGrids(own, train.shape[1], num_classes, seed=seed, device=device)
        fit(both, held_out=chooses, held_out_share=held_out)
        final, kept = both.final, join_classifiers(both.finite())
        held = both.choosing.accuracy(training.batches(train, labels, np.flatnonzero(chooses))).of_all()
        held_top1 = [top1 if finite else 0.0 for top1, finite in zip(held.top1, kept, strict=True)]
    tested = final.accuracy(of_test()).of_all()
    best = best_classifier(tested.top1 if held_top1 is None else held_top1)
    return linear_result(
        classifiers,
        held_top1=held_top1,
        best_epochs=best_epochs,
        tested=tested,
        finite=kept,
        chosen=tested.of(best, num_classes),
        settings={
            **recorded(
                optimisers, lrs, weight_decays, lr_scaling, epochs, batch_size, choose_on, held_out, seed, cached=False
            ),
            "crop_interpolation": crop_interpolation,
        },
        all_final=held_top1 is not None,
        predicted=predictions_of(final, best, len(classifiers), of_test()) if predict else None,
    )


def _images_of_rows(indices: NDArray[np.int64] | None, rows: int, source: Source) -> NDArray[np.int64]:
    """Return the image of every row of the training features."""
    images = np.arange(rows) if indices is None else np.asarray(indices, dtype=np.int64)
    if len(images) != rows or (indices is None and rows != len(source)):
        raise DataError(
            f"every row of the training features needs its image: received {rows} rows and "
            f"{len(source) if indices is None else len(images)} images of {source.name}."
        )
    if len(np.unique(images)) != rows or images.min() < 0 or images.max() >= len(source):
        raise DataError(
            f"the rows of the training features must be different images of {source.name}, which has {len(source)}."
        )
    return images
