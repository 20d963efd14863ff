"""Labels for all images from those of a few: k-NN or a linear classifier, whichever predicts held-out labels better.

Every label whose class has another one is held out in turn (five folds). The method with the lowest log loss on these
wins, after one temperature has been fitted to it, so that a certainty of 80% is right in about 80% of cases. With one
label per class nothing can be held out: the nearest labelled image decides, and certainties are not calibrated.

Shapes: M images, L labelled images, F features, C classes, H held-out labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from carp.evaluation.linear.grid import Classifier, LinearGrid, cosine, fit, shuffled
from carp.evaluation.nearest_neighbours import nearest
from carp.exploration.clusters import unit_vectors
from carp.features.extract import Features, Progress
from carp.random import Purpose, key

Labels = NDArray[np.int64]
Floats = NDArray[np.float64]
Fitted = Callable[[Features], Floats]  # features [m, F] to scores [m, C], whose softmax is a distribution

ENOUGH = 20  # held-out labels that a temperature can be fitted to
_FOLDS = 5
_VOTE = 0.07  # temperature of votes, as in `carp eval knn`
_NEIGHBOURS = (1, 5, 20)
_LRS = (1.0, 3.0, 10.0, 30.0)
_EPOCHS, _BATCH = 60, 64
_TEMPERATURES = np.exp(np.linspace(np.log(0.05), np.log(20), 121))
_SMALLEST = 1e-12
_PREDICTED_AT_A_TIME = 8192


@dataclass(frozen=True)
class Method:
    """A way to predict labels, and how well it predicts held-out ones."""

    name: str
    accuracy: float
    log_loss: float
    calibration_error: float
    temperature: float


@dataclass(frozen=True)
class LabelPrediction:
    """Predicted classes of all images, and what held-out labels say about them."""

    probabilities: Floats
    """[M, C]."""
    method: Method | None
    """The one that was chosen; None if too few labels could be held out, and certainties are not calibrated."""
    methods: Sequence[Method]
    held_out: Labels
    """Places of the held-out labels among the given ones, [H]."""
    held_out_probabilities: Floats
    """What was predicted for them from the others, [H, C]."""

    @property
    def classes(self) -> Labels:
        """The most likely class of every image, [M]."""
        classes: Labels = self.probabilities.argmax(axis=1)
        return classes

    @property
    def certainty(self) -> Floats:
        """Its probability, [M]."""
        certainty: Floats = self.probabilities.max(axis=1)
        return certainty


def predict_labels(
    features: Features,
    known: Features,
    labels: Labels,
    num_classes: int,
    *,
    seed: int = 0,
    progress: Progress = lambda _done, _all: None,
) -> LabelPrediction:
    """Predict the classes of features [M, F] from known ones.

    Args:
        features: Of all images.
        known: Of the labelled images, [L, F].
        labels: Their classes, [L].
        num_classes: C; every class has a label.
        seed: Of the folds and of the linear classifiers.
        progress: Called with (methods tried, all).
    """
    mean = unit_vectors(features).mean(axis=0)
    x_MF, x_LF = (_centred(part, mean) for part in (features, known))
    folds = _folds(labels, seed)
    held = np.flatnonzero(folds >= 0)
    fits = _methods(len(labels), seed)
    if len(held) < ENOUGH:
        probabilities = _predict(_knn(1)(x_LF, labels, num_classes), x_MF, 1.0)
        return LabelPrediction(probabilities, None, [], np.empty(0, np.int64), np.empty((0, num_classes)))
    tried = list[tuple[Method, Floats]]()
    for done, (name, method) in enumerate(fits.items()):
        scores_HC = np.empty((len(held), num_classes))
        for fold in range(_FOLDS):
            inside = folds[held] == fold
            if inside.any():
                rest = folds != fold
                scores_HC[inside] = method(x_LF[rest], labels[rest], num_classes)(x_LF[held[inside]])
        tried.append(_judged(name, scores_HC, labels[held]))
        progress(done + 1, len(fits))
    best, scores_HC = min(tried, key=lambda each: each[0].log_loss)
    final = fits[best.name](x_LF, labels, num_classes)
    return LabelPrediction(
        _predict(final, x_MF, best.temperature),
        best,
        [method for method, _ in tried],
        held,
        softmax(scores_HC / best.temperature),
    )


def calibration_error(probabilities: Floats, labels: Labels, bins: int = 10) -> float:
    """The expected calibration error: the mean difference between certainty and accuracy over bins of equal width."""
    certainty, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    place = np.minimum((certainty * bins).astype(int), bins - 1)
    gaps = [abs(certainty[place == b].sum() - right[place == b].sum()) for b in range(bins)]
    return float(sum(gaps) / max(1, len(labels)))


def softmax(scores: Floats) -> Floats:
    """Distributions over the last axis."""
    powers: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _centred(features: Features, mean: Features) -> Features:
    """Directions of features relative to the mean of all, which images share and which says nothing about a class."""
    return unit_vectors(unit_vectors(features) - mean)


def _folds(labels: Labels, seed: int) -> Labels:
    """The fold of every label, [L]; -1 for the only label of a class, which is never held out."""
    folds = np.full(len(labels), -1, dtype=np.int64)
    hashes = key(seed, Purpose.HELD_OUT, np.arange(len(labels)))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if len(own) > 1:
            folds[own[np.argsort(hashes[own], kind="stable")]] = np.arange(len(own)) % _FOLDS
    return folds


def _methods(num_labels: int, seed: int) -> dict[str, Callable[[Features, Labels, int], Fitted]]:
    """All ways to predict, by name."""
    neighbours = {f"k-NN, k = {k}": _knn(k) for k in _NEIGHBOURS if 2 * k <= num_labels}
    return neighbours | {f"linear, learning rate {lr:g}": _linear(lr, seed) for lr in _LRS}


def _knn(k: int) -> Callable[[Features, Labels, int], Fitted]:
    def train(known: Features, labels: Labels, num_classes: int) -> Fitted:
        def scores(features: Features) -> Floats:
            cosines, rows = nearest(known, features, len(known) if k == 1 else min(k, len(known)))
            votes = np.exp((cosines - cosines[:, :1]) / _VOTE)
            total = np.zeros((len(features), num_classes))
            if k == 1:  # the nearest of every class
                np.maximum.at(total, (np.arange(len(features))[:, None], labels[rows]), votes)
            else:
                np.add.at(total, (np.arange(len(features))[:, None], labels[rows]), votes)
            return np.log(np.maximum(total, _SMALLEST))

        return scores

    return train


def _linear(lr: float, seed: int) -> Callable[[Features, Labels, int], Fitted]:
    def train(known: Features, labels: Labels, num_classes: int) -> Fitted:
        grid = LinearGrid([Classifier("sgd", lr)], known.shape[1], num_classes, seed=seed)
        batches = shuffled(known, labels, np.arange(len(known)), batch_size=min(_BATCH, len(known)), seed=seed)
        fit(grid, batches, epochs=_EPOCHS, lr_factor=cosine(_EPOCHS))

        def scores(features: Features) -> Floats:
            return grid.logits(torch.from_numpy(features))[:, 0].double().numpy()

        return scores

    return train


def _judged(name: str, scores_HC: Floats, labels: Labels) -> tuple[Method, Floats]:
    """Fit the temperature of a method to held-out labels, and measure it on them."""
    own = np.arange(len(labels)), labels
    losses = [-np.log(np.maximum(softmax(scores_HC / t)[own], _SMALLEST)).mean() for t in _TEMPERATURES]
    best = int(np.argmin(losses))
    probabilities = softmax(scores_HC / _TEMPERATURES[best])
    accuracy = float((probabilities.argmax(axis=1) == labels).mean())
    error = calibration_error(probabilities, labels)
    return Method(name, accuracy, float(losses[best]), error, float(_TEMPERATURES[best])), scores_HC


def _predict(fitted: Fitted, features: Features, temperature: float) -> Floats:
    starts = range(0, len(features), _PREDICTED_AT_A_TIME)
    parts = [softmax(fitted(features[start : start + _PREDICTED_AT_A_TIME]) / temperature) for start in starts]
    return np.concatenate(parts)
