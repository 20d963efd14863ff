"""The paper's linear evaluation: linear classifiers on a frozen encoder that sees random crops and flips.

All classifiers of the grid train on one pass of the encoder. Two grids share it. One does not see the images that are
held out; its accuracy on them selects a classifier. The other sees all images, and its classifier with the same
settings is tested. So nothing is trained twice, and the test images select nothing. Under torchrun every process
encodes its share of a step's images and trains its share of the classifiers on all of them.

Shapes: N images, B images of a step, F features.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from carp.compute import distributed
from carp.errors import ConfigError, DataError
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
from carp.evaluation.linear.grid import Batch, OptimiserName, in_order, join_classifiers, own_classifiers
from carp.evaluation.linear.grid_training import FrozenEncoder, Precision, Training, TwoGrids
from carp.evaluation.result import Predicted, Result
from carp.features.extract import Progress
from carp.images.source import Source
from carp.images.views.crops import Crops
from carp.runs.run_folder import locked

T = TypeVar("T", bound=np.generic)

_STATE = 2  # of the files below `state`: another number when a step is computed in another way


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
    batch_size: int = 256,
    held_out: float = 0.1,
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
        indices: Which image of `source` each row of `train` is; without it row n is image n. Others are not used.
        size: Side of the crops.
        device: Where the encoder and the grid are.
        precision: Precision of the encoder; the classifiers are always float32.
        workers: Processes that decode photographs.
        optimisers: Optimisers of the grid.
        lrs: Learning rates of the grid, for 256 images: multiplied by batch_size / 256.
        weight_decays: Weight decays of the grid.
        epochs: Passes over the training images.
        batch_size: Images per step.
        held_out: Share of every class that selects the classifier.
        seed: Seed of the initial weights, the order, the crops and the images held out.
        weights_hash: Identifies the encoder, so that a state is only resumed with the encoder that it belongs to.
        state: A folder that keeps the state, so that the same call resumes after an interruption; the results are the
            same bit for bit (with the same number of threads). Remove it once the result is stored.
        save_seconds: Time between two saves.
        predict: Also return a prediction for every test image.
        progress: Called with (done, all) images, counted over the epochs.
        warn: Called with one line about images that could not be read, or about a damaged state.

    Returns:
        The same as `linear_probe`, and `best_top1_on_test`: the largest `test_top1` of the grid. The paper's reference
        reports it; it is too high, because the test images select the classifier. In the grid, `held_out_top1` belongs
        to the classifier that did not see the images held out, `test_top1` to the one that saw all.
    """
    classifiers = scaled_grid(optimisers, lrs, weight_decays, batch_size)
    check_pair(train, test)
    labels, truth, num_classes = check_classes(train, train_labels, test, test_labels)
    images = _images_of_rows(indices, len(train), source)
    chooses = choose_held_out(labels, held_out, seed)
    if state is not None and not weights_hash:
        raise ConfigError(
            "state was given without weights_hash, so it could be resumed with another encoder. Give the hash."
        )

    both = TwoGrids(own_classifiers(classifiers), train.shape[1], num_classes, seed=seed, device=device)
    crops = Crops(
        source, images, size=size, batch_size=batch_size, seed=seed, workers=workers, ahead=device.type != "cpu"
    )
    described = {
        "state": _STATE,
        "members": [asdict(classifier) for classifier in classifiers],  # a key of states that earlier versions wrote
        "settings": [epochs, batch_size, held_out, seed, size, precision, device.type],
        "weights": weights_hash,
        "data": [source.fingerprint, _digest(images.tobytes()), _digest(labels.tobytes())],
        "shape": [train.shape[1], num_classes],
    }
    place = None if state is None else state / _digest(json.dumps(described).encode())[:16]
    with nullcontext() if place is None or not distributed.is_first() else locked(place):
        Training(
            grids=both,
            crops=crops,
            encode=FrozenEncoder(encoder, device, precision),
            epochs=epochs,
            label_of=_by_image(len(source), images, labels),
            is_held=_by_image(len(source), images, chooses),
            state=place,
            save_seconds=save_seconds,
            progress=progress,
            warn=warn,
        ).run()

    held_rows, test_rows = np.flatnonzero(chooses), np.arange(len(test))
    kept = join_classifiers(both.finite())
    held = both.choosing.accuracy(_to(device, in_order(train, labels, held_rows))).of_all()
    held_top1 = [top1 if finite else 0.0 for top1, finite in zip(held.top1, kept, strict=True)]
    tested = both.final.accuracy(_to(device, in_order(test, truth, test_rows))).of_all()
    best = best_classifier(held_top1)
    return linear_result(
        classifiers,
        held_top1=held_top1,
        tested=tested,
        finite=kept,
        chosen=tested.of(best, num_classes),
        settings={"epochs": epochs, "batch_size": batch_size, "held_out": held_out, "seed": seed, "cached": False},
        all_final=True,
        predicted=_predicted(both, best, len(classifiers), _to(device, in_order(test, truth, test_rows)))
        if predict
        else None,
    )


def _predicted(grids: TwoGrids, classifier: int, num_classifiers: int, batches: Iterator[Batch]) -> Predicted:
    """Return the predictions of one classifier, which one process has, on all processes."""
    own = range(num_classifiers)[distributed.own_share(num_classifiers)]
    found = grids.final.predict(batches, classifier - own.start) if classifier in own else None
    told = distributed.gather(None if found is None else [found.classes.tolist(), found.scores.tolist()])
    classes, scores = next(part for part in told if part is not None)
    return Predicted(np.array(classes), np.array(scores))


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


def _by_image(num_images: int, images: NDArray[np.int64], values: NDArray[T]) -> NDArray[T]:
    """Return values of rows as values of the images of the source."""
    found = np.zeros(num_images, dtype=values.dtype)
    found[images] = values
    return found


def _to(device: torch.device, batches: Iterator[Batch]) -> Iterator[Batch]:
    return ((x_BF.to(device), y_B.to(device)) for x_BF, y_B in batches)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
