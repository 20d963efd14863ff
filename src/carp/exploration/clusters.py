"""Clusters of images: spherical k-means on their features, or the prototypes of a run as centres; with certainty.

Shapes: M images, F features, K clusters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from carp.evaluation.clustering import fit_kmeans
from carp.exploration.layout import spread_rows
from carp.exploration.prototype_images import margin
from carp.features.extract import Features
from carp.random import Purpose, key, seed_of, uniforms
from carp.similarity.vectors import parts, unit_length

_SAMPLE, _SMALLEST_SAMPLE = 64, 1024  # images per cluster, and in all, that the starts are tried on
_STARTS, _ITERATIONS = 5, 8
_ROUNDS, _REFINEMENTS, _CONVERGED = 8, 3, 2e-4  # of iterations over all images, until the objective hardly gains
_DIRECTIONS = 256
_COSINES_AT_A_TIME = 2**24


@dataclass(frozen=True)
class Clusters:
    """The cluster of every image; clusters are numbered from the largest to the smallest, and none is empty."""

    centres: Features
    """[K, F], of unit length."""
    own: NDArray[np.int64]
    """The cluster of every image, [M]."""
    similarity: Features
    """Cosine of every image with the centre of its cluster, [M]."""
    certainty: Features
    """How clearly that is the nearest centre, [M]: 1 at the centre, 0 in the middle between two (`margin`)."""

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Images of every cluster, [K]."""
        return np.bincount(self.own, minlength=len(self))

    @property
    def tightness(self) -> NDArray[np.float64]:
        """Mean cosine of the images of every cluster with its centre, [K]."""
        total = np.bincount(self.own, weights=self.similarity, minlength=len(self)).astype(np.float64)
        return total / np.maximum(self.sizes, 1)

    def typical(self, cluster: int, count: int) -> list[int]:
        """The images of a cluster that are nearest to its centre."""
        rows = np.flatnonzero(self.own == cluster)
        return list(map(int, rows[np.argsort(-self.similarity[rows], kind="stable")][:count]))

    def doubtful(self, cluster: int, count: int) -> list[int]:
        """The images of a cluster that are nearly as close to another one."""
        rows = np.flatnonzero(self.own == cluster)
        return list(map(int, rows[np.argsort(self.certainty[rows], kind="stable")][:count]))

    def outliers(self, count: int) -> list[int]:
        """The images that are furthest from every centre."""
        return list(map(int, np.argsort(self.similarity, kind="stable")[:count]))


def cluster_features(features: Features, k: int, *, seed: int = 0) -> Clusters:
    """Cluster features [M, F] by spherical k-means.

    Five starts by k-means++ are tried on a sample of 64 images per cluster, in 256 random directions if there are more
    features; the best is refined on all images.
    """
    vectors = unit_vectors(features)
    order = np.argsort(key(seed, Purpose.CLUSTERS, 0, np.arange(len(vectors))), kind="stable")
    sample = np.ascontiguousarray(vectors[np.sort(order[: max(_SAMPLE * k, _SMALLEST_SAMPLE)])])
    small = in_few_directions(sample, seed)
    starts = (_spread_out(small, k, seed, number) for number in range(_STARTS))
    tried = [fit_kmeans(small, k, iterations=_ITERATIONS, redos=1, seed=seed, start=start) for start in starts]
    best = max(tried, key=lambda each: each.obj[-1])  # faiss maximises the sum of cosines
    own = best.index.search(small, 1)[1][:, 0]
    centres = _means(sample, own, k)
    for _ in range(_ROUNDS):
        found = fit_kmeans(vectors, k, iterations=_REFINEMENTS, redos=1, seed=seed, start=centres)
        centres = np.asarray(found.centroids)
        if found.obj[-1] - found.obj[0] < _CONVERGED * found.obj[-1]:
            break
    return assign_to(vectors, centres)


def cluster_landmarks(features: Features, k: int, *, landmarks: int, seed: int = 0) -> Clusters:
    """Cluster so many images at random, and assign every image to the nearest of their centres."""
    rows = spread_rows(len(features), landmarks, seed)
    if len(rows) == len(features):
        return cluster_features(features, k, seed=seed)
    return assign_to(features, cluster_features(features[rows], k, seed=seed).centres)


def in_few_directions(vectors: Features, seed: int) -> Features:
    """Vectors in at most 256 random directions, in which cosines are nearly the same."""
    if vectors.shape[1] <= _DIRECTIONS:
        return vectors
    generator = np.random.Generator(np.random.PCG64(seed_of(seed, Purpose.CLUSTERS)))
    directions = generator.standard_normal((vectors.shape[1], _DIRECTIONS), dtype=np.float32)
    return unit_length(vectors @ directions)


def _means(vectors: Features, own: NDArray[np.int64], k: int) -> Features:
    """The mean direction of every cluster, [k, F]; a vector of the sample for a cluster without any."""
    total = np.zeros((k, vectors.shape[1]), dtype=np.float32)
    np.add.at(total, own, vectors)
    empty = ~np.isin(np.arange(k), own)
    total[empty] = vectors[: int(empty.sum())]
    return unit_length(total)


def _spread_out(vectors: Features, k: int, seed: int, start: int) -> Features:
    """Choose k vectors to start from, each far from those before it (greedy k-means++).

    Every next one is the best of a few that are drawn with a probability proportional to their distance 1 − cosine.
    """
    trials = 2 + int(np.log(k))
    draws = uniforms(key(seed, Purpose.CLUSTERS, 1 + start, np.arange(k)), trials)
    chosen = [int(draws[0, 0] * len(vectors))]
    distance = np.maximum(1 - vectors @ vectors[chosen[0]], 0)
    for number in range(1, k):
        total = np.cumsum(distance, dtype=np.float64)
        rows = np.minimum(np.searchsorted(total, draws[number] * total[-1], side="right"), len(vectors) - 1)
        nearer = np.minimum(distance, np.maximum(1 - vectors[rows] @ vectors.T, 0))
        best = int(nearer.sum(axis=1).argmin())
        chosen.append(int(rows[best]))
        distance = nearer[best]
    return np.ascontiguousarray(vectors[chosen])


def assign_to(features: Features, centres: Features) -> Clusters:
    """Assign features [M, F] to the nearest of given centres; centres without images are left out."""
    centres = unit_length(centres)
    cosines, rows = _nearest_two(features, centres)
    second = cosines[:, 1] if cosines.shape[1] > 1 else np.full(len(cosines), -1, dtype=np.float32)
    counts = np.bincount(rows[:, 0], minlength=len(centres))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    place = np.full(len(centres), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    return Clusters(centres[order], place[rows[:, 0]], cosines[:, 0], margin(cosines[:, 0], second))


def _nearest_two(features: Features, centres: Features) -> tuple[Features, NDArray[np.int64]]:
    """Cosines [M, 2] of features with their two nearest centres, and these centres; one column if there is one."""
    at_a_time = max(1, _COSINES_AT_A_TIME // len(centres))
    found = []
    for start in range(0, len(features), at_a_time):
        part = torch.from_numpy(unit_length(features[start : start + at_a_time]))
        found.append((part @ torch.from_numpy(centres).T).topk(min(2, len(centres)), dim=1))
    cosines, rows = (torch.cat([each[side] for each in found]).numpy() for side in (0, 1))
    return cosines, rows


def unit_vectors(features: Features) -> Features:
    """A copy of features [M, F] whose vectors have length 1."""
    return np.concatenate([unit_length(part) for part in parts(features)])
