"""The classifiers of few-shot evaluation, each trained on some rows of the training features.

Shapes: N images, F features, C classes.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.feature_arrays import (
    Features,
    Labels,
    Progress,
    check_classes,
    check_multi_label,
    check_pair,
    spans,
)
from carp.evaluation.linear.best_epochs import BestEpochs
from carp.evaluation.linear.crop_training import CropTraining, digest
from carp.evaluation.linear.grid import (
    Batch,
    Classifier,
    LinearGrid,
    Rows,
    fit,
    in_order,
    own_classifiers,
    predictions_of,
    shuffled,
)
from carp.evaluation.linear.grid_training import OneGrid
from carp.evaluation.metrics import average_precision, scikit_learn
from carp.evaluation.result import Predicted

Shown = NDArray[np.bool_]  # which images show which class, [N, C]

_COST = 0.5
_POSITIVE_WEIGHT = 2
_EPOCHS, _DROPS, _BATCH = 20, (12, 18), 256


class LinearTask:
    """A linear classifier trained by SGD; the learning rate falls to a tenth at two epochs."""

    def __init__(
        self,
        train: Features,
        train_labels: Labels | None,
        test: Features,
        test_labels: Labels | None,
        seed: int,
        classifier: Classifier,
        *,
        best_epoch: bool,
        crops: CropTraining | None,
        images: NDArray[np.int64] | None,
    ) -> None:
        check_pair(train, test)
        self.labels, self._truth, self._num_classes = check_classes(train, train_labels, test, test_labels)
        self._train, self._test, self._seed, self._classifier = train, test, seed, classifier
        self._best_epoch, self._crops = best_epoch, crops
        self._images = np.arange(len(train)) if images is None else images
        self.settings = {
            "classifier": "linear",
            "epochs": _EPOCHS,
            "lr": classifier.lr,
            "weight_decay": classifier.weight_decay,
            "batch_size": _BATCH,
            "best_epoch": best_epoch,
            "crops": crops is not None,
            **({} if crops is None else {"crop_interpolation": crops.interpolation}),
        }

    def work(self, rows: Rows) -> int:
        """Return how much a draw adds to the progress."""
        return 1 if self._crops is None else _EPOCHS * len(rows)

    def classify(
        self, rows: Rows, run: int, *, predict: bool, progress: Progress
    ) -> tuple[dict[str, float], Predicted | None]:
        """Train on these rows and test; return the values, and the predictions if wanted."""
        seed, crops = self._seed + run, self._crops
        grid, of_test = self._untrained(seed)
        best = BestEpochs(grid, of_test) if self._best_epoch else None
        if crops is None:
            batches = shuffled(self._train, self.labels, rows, batch_size=_BATCH, seed=seed)
            fit(grid, batches, epochs=_EPOCHS, lr_factor=_falling, after_epoch=best.after_epoch if best else None)
        else:
            crops.run(
                OneGrid(grid, best),
                [self._classifier],
                self._images[rows],
                self.labels[rows],
                epochs=_EPOCHS,
                batch_size=_BATCH,
                seed=seed,
                lr_factor=_falling,
                also={"lr_drops": _DROPS, "tested": self._tested if best else None},
                progress=progress,
            )
        if best is not None:
            best.restore()
        found = grid.accuracy(of_test())
        found = found if crops is None else found.of_all()
        values = {"top1": found.top1[0], "mean_per_class": found.mean_per_class[0]}
        if not predict:
            return values, None
        return values, grid.predict(of_test(), 0) if crops is None else predictions_of(grid, 0, 1, of_test())

    def _untrained(self, seed: int) -> tuple[LinearGrid, Callable[[], Iterable[Batch]]]:
        """Return the classifier, and the test images; on stored features, every process trains the same."""
        one, shape = [self._classifier], (self._train.shape[1], self._num_classes)
        if self._crops is None:
            everything = np.arange(len(self._test))
            return LinearGrid(one, *shape, seed=seed), partial(in_order, self._test, self._truth, everything)
        grid = LinearGrid(own_classifiers(one), *shape, seed=seed, device=str(self._crops.device))
        return grid, partial(self._crops.batches, self._test, self._truth)

    @cached_property
    def _tested(self) -> list[str]:
        """What the best epoch depends on, apart from the training."""
        return [digest(self._test), digest(self._truth)]


def _falling(epoch: int) -> float:
    return float(0.1 ** sum(epoch >= drop for drop in _DROPS))


class SvmTask:
    """One linear support vector machine per class, on features of length 1."""

    settings: ClassVar[dict[str, Any]] = {"classifier": "svm", "cost": _COST, "positive_weight": _POSITIVE_WEIGHT}

    def __init__(
        self, train: Features, train_labels: Labels | None, test: Features, test_labels: Labels | None
    ) -> None:
        self._norms, self._test_norms = check_pair(train, test)
        self.shown, self._truth = check_multi_label(train, train_labels, test, test_labels)
        self._train, self._test = train, test

    def work(self, _rows: Rows) -> int:
        """Return how much a draw adds to the progress."""
        return 1

    def classify(
        self, rows: Rows, _run: int, *, predict: bool, progress: Progress
    ) -> tuple[dict[str, float], Predicted | None]:
        """Train on these rows and test; there are no predictions."""
        del predict, progress
        features, shown = self._train[rows] / self._norms[rows, None], self.shown[rows]
        both = [
            average_precision(self._truth[:, label], self._scores(features, shown[:, label], label))
            for label in range(shown.shape[1])
        ]
        area, eleven = np.mean(both, axis=0).tolist()
        return {"map": area, "map11": eleven}, None

    def _scores(self, features: Features, shown: Shown, label: int) -> NDArray[np.float64]:
        """Return the scores of one class for all test images."""
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
