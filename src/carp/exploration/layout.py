"""A map of images: a place in the plane for every feature vector, near where its neighbours are.

t-SNE (openTSNE) draws neighbours together; without the extra `[explore]`, the two first principal components stand in.
Above 50,000 images, t-SNE places that many landmarks, and every other image goes to the middle of its nearest ones.

Shapes: M images, F features, D principal components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.evaluation.nearest_neighbours import nearest
from carp.features.extract import Features, Progress
from carp.features.principal_axes import principal_axes
from carp.random import Purpose, key
from carp.similarity.vectors import parts, unit_length

LANDMARKS = 50_000
_COMPONENTS = 50  # that t-SNE is given
_PERPLEXITY = 30
_FEWEST = 12  # fewer images have no neighbourhoods
_EARLY, _ITERATIONS = 150, 350  # of the optimisation: with exaggerated attraction, then without
_NEAREST_LANDMARKS = 5
_AXES_FROM = 20_000  # images that quick principal components are learned from


@dataclass(frozen=True)
class Layout:
    """Places of images in the plane."""

    points: NDArray[np.float32]
    """[M, 2], from -1 to 1."""
    method: str
    """What placed them, in a few words."""


def lay_out(features: Features, *, seed: int = 0, progress: Progress = lambda _done, _all: None) -> Layout:
    """Place images so that those with similar features are near each other.

    Args:
        features: [M, F]; only their directions matter.
        seed: Of the optimisation.
        progress: Called with (iterations done, all).
    """
    components = _components(features)
    library = _open_tsne()
    if library is None or len(features) < _FEWEST:
        method = "principal components" + ("" if library else "; install carp-ssl[explore] for t-SNE")
        return Layout(_scaled(components[:, :2]), method)
    if len(features) <= LANDMARKS:
        return Layout(_scaled(_tsne(library, components, seed, progress)), "t-SNE")
    order = _shuffled(len(features), seed)
    chosen = np.sort(order[:LANDMARKS])
    placed = _tsne(library, components[chosen], seed, progress)
    points = np.empty((len(features), 2), dtype=np.float32)
    points[chosen] = placed
    others = np.sort(order[LANDMARKS:])
    _, near = nearest(components[chosen], components[others], _NEAREST_LANDMARKS)
    points[others] = np.median(placed[near], axis=1)
    return Layout(_scaled(points), f"t-SNE of {LANDMARKS:,} images; the others are placed between the nearest of them")


def lay_out_quickly(features: Features) -> Layout:
    """Place images by the first two principal components of a sample: within a second or two for a million images."""
    sample = spread_rows(len(features), _AXES_FROM)
    some = unit_length(features[sample])
    mean = some.mean(axis=0)
    centred = some - mean
    axes = principal_axes(centred.T @ centred / len(some))[1] if centred.any() else np.zeros((features.shape[1], 0))
    kept = axes[:, ::-1][:, :2].astype(np.float32)
    found = np.concatenate([(unit_length(part) - mean) @ kept for part in parts(features)])
    return Layout(_scaled(np.pad(found, ((0, 0), (0, 2 - found.shape[1])))), "principal components")


def aligned(points: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn or mirror a map [M, 2], so that images are as near as possible to their places on another map."""
    left, _, right = np.linalg.svd(points.T.astype(np.float64) @ reference)
    return _scaled((points @ (left @ right)).astype(np.float32))


def spread_rows(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """All rows, or so many of them at random, in ascending order."""
    if count <= most:
        return np.arange(count)
    return np.sort(_shuffled(count, seed)[:most])


def _shuffled(count: int, seed: int) -> NDArray[np.int64]:
    return np.argsort(key(seed, Purpose.LANDMARK, np.arange(count)), kind="stable")


def _components(features: Features) -> Features:
    """The first principal components [M, D] of features of unit length, as many as there are, at least two columns."""
    total = sum(unit_length(part).sum(axis=0, dtype=np.float64) for part in parts(features))
    mean = np.asarray(total / len(features), dtype=np.float32)
    covariance = np.zeros((features.shape[1], features.shape[1]))
    for part in parts(features):
        centred = unit_length(part) - mean
        covariance += centred.T @ centred
    _, axes = principal_axes(covariance / len(features)) if covariance.any() else (None, np.zeros((len(covariance), 0)))
    kept = axes[:, ::-1][:, :_COMPONENTS].astype(np.float32)
    found = np.concatenate([(unit_length(part) - mean) @ kept for part in parts(features)])
    return np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))


def _tsne(library: Any, components: Features, seed: int, progress: Progress) -> NDArray[np.float32]:
    total = _EARLY + _ITERATIONS
    done = 0

    def report(iteration: int, _error: float, _points: object) -> bool:
        progress(min(done + iteration, total), total)
        return False

    perplexity = min(_PERPLEXITY, (len(components) - 1) / 3)
    affinities = library.affinity.PerplexityBasedNN(
        components, perplexity=perplexity, method="annoy", random_state=seed, n_jobs=1
    )
    start = library.initialization.rescale(components[:, :2].astype(np.float64))
    placed = library.TSNEEmbedding(
        start, affinities, n_jobs=1, random_state=seed, callbacks=report, callbacks_every_iters=25
    )
    exaggeration = 12
    placed = placed.optimize(_EARLY, exaggeration=exaggeration, momentum=0.5)
    done = _EARLY
    placed = placed.optimize(_ITERATIONS, momentum=0.8)
    return np.asarray(placed, dtype=np.float32)


def _scaled(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Points centred and divided by their largest coordinate."""
    centred = points - (points.max(axis=0) + points.min(axis=0)) / 2
    largest = float(np.abs(centred).max()) if len(points) else 0.0
    scaled: NDArray[np.float32] = (centred / (largest or 1.0)).astype(np.float32)
    return scaled


def _open_tsne() -> Any:
    """The library, or None if it is not installed."""
    try:
        import openTSNE  # noqa: PLC0415 - optional
        import openTSNE.affinity  # noqa: PLC0415
        import openTSNE.initialization  # noqa: PLC0415
    except ImportError:
        return None
    return openTSNE
