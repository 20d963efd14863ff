"""Few-shot classification as in the paper's appendix: n labelled images per class, several draws.

Datasets with several labels per image (VOC07): one linear support vector machine per class, as in the low-shot protocol
of PCL, which the paper follows. Datasets with one label per image (iNaturalist 2018): a linear classifier, 20 epochs of
SGD.

Shapes: N images, F features, C classes.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from carp.errors import ConfigError, DataError
from carp.evaluation.feature_arrays import (
    Features,
    Labels,
    Progress,
    check_classes,
    check_multi_label,
    check_pair,
    silent,
    spans,
)
from carp.evaluation.linear.grid import Classifier, LinearGrid, Rows, fit, in_order, shuffled
from carp.evaluation.metrics import average_precision, scikit_learn
from carp.evaluation.result import Predicted, Result, mean_and_deviation
from carp.random import Purpose, key

Shots = int | Literal["full"]
Shown = NDArray[np.bool_]  # which images show which class, [N, C]

_COST = 0.5
_POSITIVE_WEIGHT = 2
_EPOCHS, _LR, _DROPS, _BATCH = 20, 0.03, (12, 18), 256


def few_shot(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    shots: Sequence[Shots] = (1, 2, 4, 8, 16, "full"),
    runs: int = 5,
    seed: int = 0,
    predict: bool = False,
    progress: Progress = silent,
) -> Result:
    """Train on n images of every class, drawn from the training features [N, F], and test on all test features.

    Labels are [N], or [N, C] for several labels per image, where a number above 0 says that the image shows the class.
    A class with fewer than n images contributes all of them. Within a run, the images of a smaller n are among those of
    a larger one. `full` uses all images, so it has one run.

    Args:
        train: Features that images are drawn from.
        train_labels: Their classes.
        test: Test features.
        test_labels: Their classes.
        shots: How many images of every class; numbers from 1, or `full`.
        runs: Number of times that images are drawn; values are means over these runs.
        seed: Seed of the draws, and of the initial weights and the order of a linear classifier.
        predict: Also return a prediction for every test image in every run; for one label per image only.
        progress: Called with (draws done, all).

    Returns:
        Means over the runs: `top1@n` and `mean_per_class@n`, or `map@n` (area under the interpolated curve, as the
        paper's reference) and `map11@n` (the 11 points of VOC 2007). The details hold every run.
    """
    several = train_labels is not None and train_labels.ndim > 1
    if several and predict:
        raise ConfigError("images with several labels have no single prediction: leave out predictions.")
    task = (_SupportVectorMachines if several else _Linear)(train, train_labels, test, test_labels, seed)
    values: dict[str, float] = {}
    spread: dict[str, float] = {}
    details: dict[str, list[dict[str, float]]] = {}
    predicted: dict[str, Predicted] = {}
    for n in shots:
        draws = [np.arange(len(train))] if n == "full" else [task.draw(n, run) for run in range(runs)]
        found = []
        for run, rows in enumerate(draws):
            values_of_run, answers = task.classify(rows, run, predict=predict)
            found.append(values_of_run)
            if answers is not None:
                predicted[f"@{n}" if len(draws) == 1 else f"@{n} run {run}"] = answers
            progress(len(details) * runs + run + 1, len(shots) * runs)
        details[str(n)] = [{"images": len(rows), **one} for rows, one in zip(draws, found, strict=True)]
        means, deviations = mean_and_deviation(found)
        values |= {f"{name}@{n}": mean for name, mean in means.items()}
        spread |= {f"{name}@{n}": deviation for name, deviation in deviations.items()}
    settings = {"shots": list(shots), "runs": runs, "seed": seed, **task.settings}
    return Result(values=values, settings=settings, spread=spread, details=details, predicted=predicted)


def draw_single_label(labels: Labels, n: int, seed: int, run: int) -> Rows:
    """N rows of every class, in the order of the rows."""
    hashes = key(seed, Purpose.FEW_SHOT, run, np.arange(len(labels)))
    by_class = np.lexsort((hashes, labels))  # classes in turn, in each the order of the draw
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


class _Linear:
    """A linear classifier trained by SGD; the learning rate falls to a tenth at two epochs."""

    settings: ClassVar[dict[str, Any]] = {"classifier": "linear", "epochs": _EPOCHS, "lr": _LR, "batch_size": _BATCH}

    def __init__(
        self, train: Features, train_labels: Labels | None, test: Features, test_labels: Labels | None, seed: int
    ) -> None:
        check_pair(train, test)
        self._labels, self._truth, self._num_classes = check_classes(train, train_labels, test, test_labels)
        self._train, self._test, self._seed = train, test, seed

    def draw(self, n: int, run: int) -> Rows:
        return draw_single_label(self._labels, n, self._seed, run)

    def classify(self, rows: Rows, run: int, *, predict: bool) -> tuple[dict[str, float], Predicted | None]:
        seed = self._seed + run
        grid = LinearGrid([Classifier("sgd", _LR)], self._train.shape[1], self._num_classes, seed=seed)
        batches = shuffled(self._train, self._labels, rows, batch_size=_BATCH, seed=seed)
        fit(grid, batches, epochs=_EPOCHS, lr_factor=lambda epoch: 0.1 ** sum(epoch >= drop for drop in _DROPS))
        everything = partial(in_order, self._test, self._truth, np.arange(len(self._test)))
        found = grid.accuracy(everything())
        values = {"top1": found.top1[0], "mean_per_class": found.mean_per_class[0]}
        return values, grid.predict(everything(), 0) if predict else None


class _SupportVectorMachines:
    """One linear support vector machine per class, on features of length 1."""

    settings: ClassVar[dict[str, Any]] = {"classifier": "svm", "cost": _COST, "positive_weight": _POSITIVE_WEIGHT}

    def __init__(
        self, train: Features, train_labels: Labels | None, test: Features, test_labels: Labels | None, seed: int
    ) -> None:
        self._norms, self._test_norms = check_pair(train, test)
        self._shown, self._truth = check_multi_label(train, train_labels, test, test_labels)
        self._train, self._test, self._seed = train, test, seed

    def draw(self, n: int, run: int) -> Rows:
        return draw_multi_label(self._shown, n, self._seed, run)

    def classify(self, rows: Rows, _run: int, *, predict: bool) -> tuple[dict[str, float], Predicted | None]:  # noqa: ARG002
        features, shown = self._train[rows] / self._norms[rows, None], self._shown[rows]
        both = [
            average_precision(self._truth[:, label], self._scores(features, shown[:, label], label))
            for label in range(shown.shape[1])
        ]
        area, eleven = np.mean(both, axis=0).tolist()
        return {"map": area, "map11": eleven}, None

    def _scores(self, features: Features, shown: Shown, label: int) -> NDArray[np.float64]:
        """The scores of one class for all test images."""
        if shown.all():
            raise DataError(
                f"all {len(shown)} images of a draw show class {label}, so its classifier has nothing to separate: add "
                "images without it, or draw more (shots)."
            )
        classifier = scikit_learn("svm").LinearSVC(
            C=_COST,
            loss="squared_hinge",
            penalty="l2",
            dual=True,
            class_weight={True: _POSITIVE_WEIGHT, False: 1},
            tol=1e-4,
            max_iter=2000,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scikit_learn("exceptions").ConvergenceWarning)  # 2000, as in the reference
            classifier.fit(features, shown)
        units = (self._test[start:stop] / self._test_norms[start:stop, None] for start, stop in spans(self._test))
        return np.concatenate([classifier.decision_function(part) for part in units])
