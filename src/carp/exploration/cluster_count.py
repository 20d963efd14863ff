"""How many clusters? The number with the largest mean silhouette.

The silhouette of an image compares its mean cosine distance to the images of its own cluster, a, with that to the
images of the nearest other cluster, b: (b − a) / max(a, b), from -1 to 1. It is large if clusters are tight and apart,
so it falls when a group is cut in two, and when two groups are joined. It is measured on a sample of the images; labels
are not used.

Shapes: M images, F features.
"""

from dataclasses import dataclass

import numpy as np

from carp.evaluation.metrics import scikit_learn
from carp.exploration.clusters import cluster_features, in_few_directions, unit_vectors
from carp.exploration.layout import spread_rows
from carp.features.extract import Features, Progress

CRITERION = "the largest mean silhouette"
_CANDIDATES = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    14,
    16,
    18,
    20,
    24,
    28,
    32,
    37,
    43,
    50,
    60,
    72,
    86,
    100,
    125,
    150,
    200,
)
_SAMPLE = 3000  # images
_PER_CLUSTER = 8  # fewer images do not show a cluster


@dataclass(frozen=True)
class ClusterCount:
    """The number of clusters that was chosen, and how."""

    chosen: int
    silhouette: dict[int, float]
    """Mean of every candidate."""


def choose_count(features: Features, *, seed: int = 0, progress: Progress = lambda _done, _all: None) -> ClusterCount:
    """Choose the number of clusters of features [M, F], at least three images."""
    vectors = unit_vectors(features[spread_rows(len(features), _SAMPLE, seed)])
    distance = np.clip(1 - vectors @ vectors.T, 0, 2)
    np.fill_diagonal(distance, 0)
    small = in_few_directions(vectors, seed)
    mean_silhouette = scikit_learn("metrics").silhouette_score
    candidates = [k for k in _CANDIDATES if k * _PER_CLUSTER <= len(vectors)] or [2]
    found = dict[int, float]()
    for done, k in enumerate(candidates):
        own = cluster_features(small, k, seed=seed).own
        several = 1 < len(np.unique(own)) < len(own)
        found[k] = float(mean_silhouette(distance, own, metric="precomputed")) if several else -1.0
        progress(done + 1, len(candidates))
    return ClusterCount(max(found, key=lambda k: (found[k], k)), found)
