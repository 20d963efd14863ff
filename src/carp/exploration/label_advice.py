"""Which labels to add, and which of the given ones look wrong.

Images whose labels would help most are typical of regions without labels: the images are clustered into as many
clusters as there are labels and suggestions; from the clusters without a label, the largest first, the image with the
nearest neighbours is suggested. Where most clusters have labels, the least certain images of the others follow.

Shapes: M images, F features, L labelled images, C classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.exploration.clusters import cluster_features
from carp.exploration.label_prediction import LabelPrediction
from carp.features.extract import Features

_MOST_CLUSTERS = 1000
_PER_CLUSTER = 3  # images, at least, on average
_UNLIKELY = 0.1  # probability of a label that looks wrong


@dataclass(frozen=True)
class DoubtfulLabel:
    """A given label that the other labels contradict."""

    place: int
    """Among the given labels."""
    predicted: int
    """The class that the others suggest."""
    probability: float
    """Of that class."""
    own_probability: float
    """Of the given class."""


def suggest_images(
    features: Features, labelled: NDArray[np.int64], prediction: LabelPrediction, count: int, *, seed: int = 0
) -> list[int]:
    """Rows of the images whose labels would help most, the most helpful first.

    Args:
        features: Of all images, [M, F].
        labelled: Rows that have labels already, [L].
        prediction: Of all images.
        count: How many.
        seed: Of the clusters.
    """
    has_label = np.zeros(len(features), dtype=bool)
    has_label[labelled] = True
    free = int((~has_label).sum())
    count = min(count, free)
    k = min(len(labelled) + count, _MOST_CLUSTERS, len(features) // _PER_CLUSTER)
    if count < 1 or k < 2:
        return list(map(int, np.flatnonzero(~has_label)[: max(0, count)]))
    clusters = cluster_features(features, k, seed=seed)
    covered = np.bincount(clusters.own[labelled], minlength=len(clusters)) > 0
    chosen = [clusters.typical(cluster, 1)[0] for cluster in np.flatnonzero(~covered).tolist()][:count]
    left = np.flatnonzero(~has_label & ~np.isin(np.arange(len(features)), chosen))
    unsure = left[np.argsort(prediction.certainty[left], kind="stable")]
    return [*chosen, *unsure[: count - len(chosen)].tolist()]


def doubtful_labels(
    prediction: LabelPrediction, labels: NDArray[np.int64], *, least: float = 0.5
) -> list[DoubtfulLabel]:
    """Given labels that are unlikely, where another class has at least this probability; the most certain first."""
    probabilities = prediction.held_out_probabilities
    found = []
    for place, distribution in zip(prediction.held_out.tolist(), probabilities, strict=True):
        best, own = int(distribution.argmax()), float(distribution[labels[place]])
        if best != labels[place] and distribution[best] >= least and own <= _UNLIKELY:
            found.append(DoubtfulLabel(place, best, float(distribution[best]), own))
    return sorted(found, key=lambda each: each.own_probability - each.probability)
