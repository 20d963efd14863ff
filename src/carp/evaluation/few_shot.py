"""Few-shot classification as in the paper's appendix: n labelled images per class, several draws.

Sets with several labels per image (VOC07): a linear support vector machine per class, as in the low-shot protocol of
PCL, which the paper follows. Sets with one label per image (iNaturalist 2018): a linear classifier, 20 epochs of SGD.

Shapes: N images, F features, C classes.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from carp.data.random import Purpose, key
from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Features, Labels, check_classes, check_multi_label, check_pair
from carp.evaluation.linear_grid import LinearGrid, Member, Rows, fit, in_order, shuffled
from carp.evaluation.metrics import average_precision, scikit_learn
from carp.evaluation.result import Result, mean_and_deviation

Shots = int | Literal["full"]
Shown = NDArray[np.bool_]  # which images show which class, [N, C]
_Classify = Callable[[Rows, int], dict[str, float]]  # rows to train on, number of the run

SHOTS: tuple[Shots, ...] = (1, 2, 4, 8, 16, "full")
_COST = 0.5
_POSITIVE_WEIGHT = 2
_EPOCHS, _LR, _DROPS, _BATCH = 20, 0.03, (12, 18), 256


def few_shot(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    shots: Sequence[Shots] = SHOTS,
    runs: int = 5,
    seed: int = 0,
) -> Result:
    """Train on n images of every class, drawn from the training features [N, F], and test on all test features.

    Labels are [N], or [N, C] for several labels per image, where a number above 0 says that the image shows the class.
    A class with fewer than n images gives all it has. Within a run the images of a smaller n are among those of a
    larger one. `full` takes all images, so it has one run.

    Returns:
        Means over the runs: `top1@n`, or `map@n` (area under the interpolated curve, as the paper's reference) and
        `map11@n` (the 11 points of VOC 2007). The details hold every run.
    """
    _check_settings(shots, runs)
    train_norms, test_norms = check_pair(train, test)
    draw: Callable[[int, int], Rows]
    classify: _Classify
    if train_labels is not None and train_labels.ndim > 1:
        shown, truth = check_multi_label(train, train_labels, test, test_labels)
        machines = _Machines(train, train_norms, shown, test, test_norms, truth)
        draw, classify = lambda n, run: draw_multi_label(shown, n, seed, run), machines
        settings = {"classifier": "svm", "cost": _COST, "positive_weight": _POSITIVE_WEIGHT}
    else:
        labels, asked, num_classes = check_classes(train, train_labels, test, test_labels)
        draw = lambda n, run: draw_single_label(labels, n, seed, run)  # noqa: E731
        classify = _linear(train, labels, test, asked, num_classes, seed)
        settings = {"classifier": "linear", "epochs": _EPOCHS, "lr": _LR, "batch_size": _BATCH}
    values: dict[str, float] = {}
    spread: dict[str, float] = {}
    details: dict[str, list[dict[str, float]]] = {}
    for n in shots:
        draws = [np.arange(len(train))] if n == "full" else [draw(n, run) for run in range(runs)]
        found = [classify(rows, run) for run, rows in enumerate(draws)]
        details[str(n)] = [{"images": len(rows), **one} for rows, one in zip(draws, found, strict=True)]
        means, deviations = mean_and_deviation(found)
        values |= {f"{name}@{n}": mean for name, mean in means.items()}
        spread |= {f"{name}@{n}": deviation for name, deviation in deviations.items() if n != "full"}
    return Result("few-shot", values, {"shots": list(shots), "runs": runs, "seed": seed, **settings}, spread, details)


def draw_single_label(labels: Labels, n: int, seed: int, run: int) -> Rows:
    """N rows of every class, in the order of the rows."""
    hashes = key(seed, Purpose.BANK, run, np.arange(len(labels)))
    by_class = np.lexsort((hashes, labels))  # classes in turn, in each the order of the draw
    _, first, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(first, counts)
    return np.sort(by_class[place < n])


def draw_multi_label(shown: Shown, n: int, seed: int, run: int) -> Rows:
    """N rows of every class, class by class; as in the reference a row that two classes draw is there twice."""
    drawn = []
    for label in range(shown.shape[1]):
        own = np.flatnonzero(shown[:, label])
        hashes = key(seed, Purpose.BANK, run, label, own)
        drawn.append(own[np.argsort(hashes, kind="stable")[:n]])
    return np.concatenate(drawn)


def _check_settings(shots: Sequence[Shots], runs: int) -> None:
    wrong = [n for n in shots if n != "full" and (not isinstance(n, int) or n < 1)]
    if wrong or not shots:
        raise ConfigError(f"shots must be numbers from 1 or 'full', received {wrong[0] if wrong else 'none'}.")
    if runs < 1:
        raise ConfigError(f"runs must be at least 1, received {runs}.")


def _linear(train: Features, labels: Labels, test: Features, truth: Labels, num_classes: int, seed: int) -> _Classify:
    """A linear classifier by SGD; the learning rate falls to a tenth at two epochs."""

    def lr_factor(epoch: int) -> float:
        return float(0.1 ** sum(epoch >= drop for drop in _DROPS))

    def classify(rows: Rows, run: int) -> dict[str, float]:
        grid = LinearGrid([Member("sgd", _LR)], train.shape[1], num_classes, seed=seed + run)
        batches = shuffled(train, labels, rows, batch_size=_BATCH, seed=seed + run)
        fit(grid, batches, epochs=_EPOCHS, lr_factor=lr_factor)
        (top1,), _ = grid.accuracy(in_order(test, truth, np.arange(len(test))))
        return {"top1": top1}

    return classify


class _Machines:
    """A linear support vector machine per class on features of length 1."""

    def __init__(
        self, train: Features, train_norms: Features, shown: Shown, test: Features, test_norms: Features, truth: Shown
    ) -> None:
        self._train, self._norms, self._shown, self._truth = train, train_norms, shown, truth
        self._test = test / test_norms[:, None]

    def __call__(self, rows: Rows, _run: int) -> dict[str, float]:
        features, shown = self._train[rows] / self._norms[rows, None], self._shown[rows]
        both = [average_precision(self._truth[:, c], self._scores(features, shown[:, c], c)) for c in self._classes]
        area, eleven = np.mean(both, axis=0).tolist()
        return {"map": area, "map11": eleven}

    @property
    def _classes(self) -> range:
        return range(self._shown.shape[1])

    def _scores(self, features: Features, shown: Shown, label: int) -> NDArray[np.float64]:
        """How sure the machine of one class is of every test image."""
        if shown.all():
            raise DataError(f"all {len(shown)} images of a draw show class {label}: its machine has nothing to tell.")
        machine = scikit_learn("svm").LinearSVC(
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
            machine.fit(features, shown)
        scores: NDArray[np.float64] = machine.decision_function(self._test)
        return scores
