"""What encoders are judged by: k-NN for the choice; k-NN, linear classifiers and k-means for the table."""

from collections.abc import Mapping

import numpy as np
from torch import nn

from benchmarks.shared import CPU
from carp.errors import NonFiniteError
from carp.evaluation.clustering import kmeans
from carp.evaluation.feature_arrays import Features
from carp.evaluation.linear.probe import linear_probe
from carp.evaluation.nearest_neighbours import knn_accuracy
from carp.features.extract import extract
from carp.images.sources.array import ArraySource

KNN, LINEAR, NMI = "knn", "linear", "nmi"
MEASURES = {KNN: "k-NN", LINEAR: "linear", NMI: "k-means NMI"}
K = 20
_LINEAR_EPOCHS = 30  # on stored features; 100 epochs change the third digit and take three times as long
_REDOS = 5  # starts of k-means

Encoders = Mapping[str, nn.Module]


def knn_of(encoders: Encoders, size: int, bank: ArraySource, queries: ArraySource) -> dict[str, float]:
    """Return the k-NN accuracy of every branch (k = 20, temperature 0.07)."""
    assert bank.labels is not None
    assert queries.labels is not None
    return {
        branch: knn_accuracy(
            features_of(encoder, bank, size), bank.labels, features_of(encoder, queries, size), queries.labels, k=K
        )
        for branch, encoder in encoders.items()
    }


def all_measures(encoders: Encoders, size: int, train: ArraySource, test: ArraySource) -> dict[str, dict[str, float]]:
    """Return all measures by name, then by branch."""
    found: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    assert train.labels is not None
    assert test.labels is not None
    for branch, encoder in encoders.items():
        parts = (features_of(encoder, train, size), train.labels, features_of(encoder, test, size), test.labels)
        found[KNN][branch] = knn_accuracy(*parts, k=K)
        found[LINEAR][branch] = linear_probe(*parts, epochs=_LINEAR_EPOCHS).values["top1"]
        found[NMI][branch] = kmeans(*parts, redos=_REDOS).values["nmi"]
    return found


def features_of(encoder: nn.Module, source: ArraySource, size: int) -> Features:
    """Return the features of all images; raise if training has made them infinite."""
    found = extract(encoder, source, size=size, device=CPU, batch_size=512).features
    if not np.isfinite(found).all():
        raise NonFiniteError("the encoder's features are not finite.")
    return found
