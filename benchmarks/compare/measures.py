"""What encoders are judged by: k-NN for the choice; k-NN, linear classifiers and k-means for the table."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from torch import nn

from benchmarks.shared import CPU
from carp.errors import NonFiniteError
from carp.evaluation.clustering import kmeans
from carp.evaluation.feature_arrays import Features, Labels
from carp.evaluation.linear.probe import linear_probe
from carp.evaluation.nearest_neighbours import knn_accuracy
from carp.features.extract import extract
from carp.images.sources.array import ArraySource

KNN, LINEAR, NMI = "knn", "linear", "nmi"
MEASURES = {KNN: "k-NN", LINEAR: "linear", NMI: "k-means NMI"}
HELD_OUT = "held_out"  # k-NN of a baseline on the images that judge the trials
K = 20
_LINEAR_EPOCHS = 30  # on stored features; `carp eval linear` has 100
_REDOS = 5  # starts of k-means; `carp eval kmeans` has 20

Arrays = tuple[Features, Labels, Features, Labels]  # of the bank, then of the images that are classified


def measured(
    encoders: Mapping[str, nn.Module], size: int, bank: ArraySource, queries: ArraySource, names: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return measures by name, then by branch; raise if training has made features infinite."""
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    assert bank.labels is not None
    assert queries.labels is not None
    for branch, encoder in encoders.items():
        parts = (_features(encoder, bank, size), bank.labels, _features(encoder, queries, size), queries.labels)
        for name, values in found.items():
            values[branch] = _MEASURES[name](*parts)
    return found


def _knn(*parts: *Arrays) -> float:
    return knn_accuracy(*parts, k=K)


def _linear(*parts: *Arrays) -> float:
    return linear_probe(*parts, epochs=_LINEAR_EPOCHS).values["top1"]


def _nmi(*parts: *Arrays) -> float:
    return kmeans(*parts, redos=_REDOS).values["nmi"]


_MEASURES: dict[str, Callable[[*Arrays], float]] = {KNN: _knn, LINEAR: _linear, NMI: _nmi}


def _features(encoder: nn.Module, source: ArraySource, size: int) -> Features:
    found = extract(encoder, source, size=size, device=CPU, batch_size=512).features
    if not np.isfinite(found).all():
        raise NonFiniteError("the encoder's features are not finite.")
    return found
