"""Few-shot classification as in the paper's appendix: n labelled images per class, several draws.

Datasets with several labels per image (VOC07): one linear support vector machine per class, as in the low-shot protocol
of PCL, which the paper follows. Datasets with one label per image (iNaturalist 2018): a linear classifier, 20 epochs of
SGD, on stored features or on random crops of the images.

Shapes: N images, F features, C classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError
from carp.evaluation.feature_arrays import Features, Labels, Progress, silent
from carp.evaluation.few_shot.classifiers import LinearTask, Shown, SvmTask
from carp.evaluation.linear.crop_training import CropTraining
from carp.evaluation.linear.grid import Classifier, Rows
from carp.evaluation.result import Predicted, Result, mean_and_deviation
from carp.random import Purpose, key

Shots = int | Literal["full"]


def few_shot(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    shots: Sequence[Shots] = (1, 2, 4, 8, 16, "full"),
    runs: int = 5,
    lr: float = 0.03,
    weight_decay: float = 0.0,
    best_epoch: bool = False,
    seed: int = 0,
    crops: CropTraining | None = None,
    images: NDArray[np.int64] | None = None,
    predict: bool = False,
    progress: Progress = silent,
) -> Result:
    """Train on n images of every class, drawn from the training features [N, F], and test on all test features.

    Labels are [N], or [N, C] for several labels per image, where a number above 0 means that the image shows the class.
    A class with fewer than n images contributes all of them. Within a run, the images of a smaller n are among those of
    a larger one. `full` uses all images, so it has one run.

    Args:
        train: Features that images are drawn from.
        train_labels: Their classes.
        test: Test features.
        test_labels: Their classes.
        shots: The number of images per class: 1 or more, or `full`.
        runs: Number of times that images are drawn; values are means over these runs.
        lr: Learning rate of a linear classifier; a tenth from epoch 12 on, and a hundredth from epoch 18.
        weight_decay: Weight decay of a linear classifier.
        best_epoch: Report the best epoch of a linear classifier on the test images, not the last.
        seed: Seed of the draws, and of the initial weights and the order of a linear classifier.
        crops: Trains a linear classifier on random crops of the images instead of stored features.
        images: For `crops`, which image of its source each row of `train` is.
        predict: Also return a prediction for every test image in every run; for one label per image only.
        progress: Called with (done, all) draws, or images of `crops`.

    Returns:
        Means over the runs: `top1@n` and `mean_per_class@n`, or `map@n` (area under the interpolated curve, as the
        paper's reference) and `map11@n` (the 11 points of VOC 2007). The details hold every run.
    """
    several = train_labels is not None and train_labels.ndim > 1
    if several and predict:
        raise ConfigError("images with several labels have no single prediction: leave out predictions.")
    parts = train, train_labels, test, test_labels
    task: SvmTask | LinearTask
    if several:
        task = SvmTask(*parts)
        draw = partial(draw_multi_label, task.shown)
    else:
        chosen = Classifier("sgd", lr, weight_decay)
        task = LinearTask(*parts, seed, chosen, best_epoch=best_epoch, crops=crops, images=images)
        draw = partial(draw_single_label, task.labels)
    drawn = {n: [np.arange(len(train))] if n == "full" else [draw(n, seed, run) for run in range(runs)] for n in shots}
    total, done = sum(task.work(rows) for draws in drawn.values() for rows in draws), 0
    values: dict[str, float] = {}
    spread: dict[str, float] = {}
    details: dict[str, list[dict[str, float]]] = {}
    predicted: dict[str, Predicted] = {}
    for n, draws in drawn.items():
        found = []
        for run, rows in enumerate(draws):
            report = partial(_report, progress, done, total)
            values_of_run, answers = task.classify(rows, run, predict=predict, progress=report)
            found.append(values_of_run)
            if answers is not None:
                predicted[f"@{n}" if len(draws) == 1 else f"@{n} run {run}"] = answers
            done += task.work(rows)
            progress(done, total)
        details[str(n)] = [{"images": len(rows), **one} for rows, one in zip(draws, found, strict=True)]
        means, deviations = mean_and_deviation(found)
        values |= {f"{name}@{n}": mean for name, mean in means.items()}
        spread |= {f"{name}@{n}": deviation for name, deviation in deviations.items()}
    settings = {"shots": list(shots), "runs": runs, "seed": seed, **task.settings}
    return Result(values=values, settings=settings, spread=spread, details=details, predicted=predicted)


def draw_single_label(labels: Labels, n: int, seed: int, run: int) -> Rows:
    """N rows of every class, in the order of the rows."""
    hashes = key(seed, Purpose.FEW_SHOT, run, np.arange(len(labels)))
    by_class = np.lexsort((hashes, labels))  # class by class, each in the order of the draw
    _, first, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(first, counts)
    return np.sort(by_class[place < n])


def draw_multi_label(shown: Shown, n: int, seed: int, run: int) -> Rows:
    """N rows of every class, class by class; as in the reference, a row that two classes draw occurs twice."""
    drawn = []
    for label in range(shown.shape[1]):
        own = np.flatnonzero(shown[:, label])
        hashes = key(seed, Purpose.FEW_SHOT, run, label, own)
        drawn.append(own[np.argsort(hashes, kind="stable")[:n]])
    return np.concatenate(drawn)


def _report(progress: Progress, before: int, total: int, done: int, _all: int) -> None:
    progress(before + done, total)
