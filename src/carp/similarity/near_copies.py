"""Near-duplicates among images: comparable features, a threshold derived from their distribution, groups.

The threshold. Let a be the inverse hyperbolic tangent of a similarity. Among images without copies, the similarities to
the nearest neighbours of an image are the largest of very many, so the gaps between them follow a law that does not
depend on the images: the j-th exceeds the next by an exponential variable of mean β / j. β is measured further out, on
the gaps between the 16th and the 48th neighbours (median over images). So the 16th neighbour of an image shows how near
the first may come by chance: the chance that it exceeds the 16th by x or more is 1 − (1 − exp(−x / β))¹⁵. Multiplied by
the number of images, this is the number of images expected to have such a neighbour, which is compared with the number
that do. The margin is the smallest x at which chance explains at most one in a hundred of them; if there is none, there
are no copies. The expected number at that margin is then computed again with the β of every image
(`expected_by_chance`). Two images are copies if their a exceeds that of the 16th neighbour of both by the margin. In a
folder with a hundred views of one building, these views must therefore be more similar than other images to count as
copies.

Shapes: M images, F features, D dimensions, k neighbours.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.features.extract import Features, Progress
from carp.features.principal_axes import principal_axes
from carp.similarity.faiss_library import load_faiss
from carp.similarity.vectors import parts, unit_length

NEAR, FAR = 16, 48  # the neighbours that the expected similarities are estimated from
BY_CHANCE = 0.01  # the accepted share of chance matches among images with a neighbour beyond the margin
FEW, FEW_THRESHOLD = 100, 0.95  # with fewer images, there is no distribution to learn from
DIMENSIONS, WHITENED_FROM = 256, 1000  # principal components, and the number of images from which they are known
_PRIOR = 96  # gaps of the median image that count with the 32 of an image's own
_ROWS_AT_A_TIME = 4096
_LARGEST = 1 - 1e-5  # similarity of what is the same, so that its arctanh is finite


@dataclass(frozen=True)
class Threshold:
    """The minimum similarity of copies."""

    value: float | None
    """The median over images, if it differs between them; None if there are no copies."""
    limits: Features
    """The limit of every image, [M]; a pair must reach the larger of its two limits."""
    reason: str


@dataclass(frozen=True)
class Copies:
    """Groups of rows; every row is a copy of another of its group."""

    threshold: Threshold
    groups: list[list[int]]
    similarity: dict[int, float]
    """The similarity of every row in a group to the nearest other row of its group."""


@dataclass(frozen=True)
class Neighbours:
    """The most similar other rows of every row, best first, both [M, k]."""

    similarities: Features
    rows: NDArray[np.int64]


def find_copies(
    features: Features,
    threshold: float | None = None,
    *,
    firsts: NDArray[np.int64] | None = None,
    progress: Progress = lambda _done, _all: None,
) -> Copies:
    """Group near-duplicates.

    Args:
        features: [M, F], may be memory-mapped.
        threshold: Minimum similarity of two copies, the same for all images. None derives it from the features.
        firsts: For every row, the first row that is known to be the same image (possibly itself), [M].
        progress: Called with (images searched for, all).
    """
    same = np.arange(len(features)) if firsts is None else firsts
    distinct = np.flatnonzero(same == np.arange(len(same)))
    vectors = comparable(features)[distinct]
    found = neighbours(vectors, FAR, progress=progress)
    chosen = choose_threshold(found.similarities) if threshold is None else _fixed(threshold, len(vectors), "as given")
    links = [(int(row), int(same[row]), 1.0) for row in np.flatnonzero(same != np.arange(len(same)))]
    if chosen.value is not None:
        near = similar_pairs(vectors, found, chosen.limits)
        links += [(int(distinct[a]), int(distinct[b]), similarity) for a, b, similarity in near]
    groups = connected((a, b) for a, b, _ in links)
    best: dict[int, float] = {}
    for a, b, similarity in links:
        for row in (a, b):
            best[row] = max(similarity, best.get(row, -1.0))
    return Copies(chosen, groups, best)


def comparable(features: Features) -> Features:
    """Return features of unit length [M, D] whose products distinguish copies from images of the same kind of object.

    Signed roots, so that a few strong features do not dominate; minus their mean; from 1,000 images on the first 256
    principal components, each divided by the root of its standard deviation.
    """
    if len(features) < FEW:  # the mean of a few images would remove what they share, and copies share everything
        return unit_length(_roots(features))
    mean = sum(_roots(part).sum(axis=0, dtype=np.float64) for part in parts(features)) / len(features)
    mean = np.asarray(mean, dtype=np.float32)
    if len(features) < WHITENED_FROM:
        return np.concatenate([unit_length(_roots(part) - mean) for part in parts(features)])
    covariance = np.zeros((features.shape[1], features.shape[1]))
    for part in parts(features):
        centred = _roots(part) - mean
        covariance += centred.T @ centred
    variances, axes = principal_axes(covariance / len(features))
    projection = (axes[:, -DIMENSIONS:] * variances[-DIMENSIONS:] ** -0.25).astype(np.float32)
    return np.concatenate([unit_length((_roots(part) - mean) @ projection) for part in parts(features)])


def _roots(features: Features) -> Features:
    rooted: Features = np.sign(features) * np.sqrt(np.abs(features))
    return rooted


def neighbours(vectors: Features, k: int, *, progress: Progress = lambda _done, _all: None) -> Neighbours:
    """Return the k most similar other vectors of every vector of unit length, by exact search in batches."""
    k = min(k, len(vectors) - 1)
    similarities = np.empty((len(vectors), k), dtype=np.float32)
    rows = np.empty((len(vectors), k), dtype=np.int64)
    index = _flat(vectors)
    for start in range(0, len(vectors) if k else 0, _ROWS_AT_A_TIME):
        stop = min(start + _ROWS_AT_A_TIME, len(vectors))
        found, which = index.search(vectors[start:stop], k + 1)
        itself = which == np.arange(start, stop)[:, None]
        itself[~itself.any(axis=1), -1] = True  # more copies than neighbours: any of them stands for itself
        others = np.argsort(itself, axis=1, kind="stable")[:, :k]
        similarities[start:stop] = np.take_along_axis(found, others, axis=1)
        rows[start:stop] = np.take_along_axis(which, others, axis=1)
        progress(stop, len(vectors))
    return Neighbours(similarities, rows)


def choose_threshold(similarities: Features) -> Threshold:
    """Return the threshold for copies from similarities to the nearest neighbours [M, 48], best first (see above)."""
    count, width = similarities.shape
    if count < FEW or width < FAR:
        return _fixed(FEW_THRESHOLD, count, f"fixed, because {count} different images are too few to derive it from")
    a = np.arctanh(np.clip(similarities.astype(np.float64), -_LARGEST, _LARGEST))
    near = a[:, NEAR - 1]
    beta = max(float(np.median(near - a[:, FAR - 1])) / sum(1 / j for j in range(NEAR, FAR)), 1e-9)
    margins = np.sort(a[:, 0] - near)[::-1]
    by_chance = count * (1 - (1 - np.exp(-margins / beta)) ** (NEAR - 1))
    low = np.flatnonzero(by_chance <= BY_CHANCE * np.arange(1, count + 1))
    if not len(low):
        reason = "no two images are closer than different images can be by chance"
        return Threshold(None, np.full(count, np.inf, dtype=np.float32), reason)
    limits = np.tanh(near + margins[low[-1]]).astype(np.float32)
    found, chance = int(low[-1]) + 1, expected_by_chance(a, float(margins[low[-1]]))
    reason = f"{found:,} images have a neighbour this close; about {chance:.1f} are expected by chance"
    return Threshold(float(np.median(limits)), limits, reason)


def expected_by_chance(a: NDArray[np.float64], margin: float) -> float:
    """Return how many images have a first neighbour that exceeds their 16th by the margin, if none has a copy.

    Args:
        a: Inverse hyperbolic tangents of the similarities to the nearest neighbours [M, 48], best first.
        margin: The amount by which the first must exceed the 16th.

    β differs between images, and the sum over images is dominated by those with a large β, so a single β for all would
    predict too few. j times the gap between the j-th neighbour and the next is exponential with mean β: 32 such gaps
    measure the β of an image. They are pooled with `_PRIOR` gaps of the median image. With n gaps of mean b, an
    exponential variable of that unknown β exceeds x with probability (1 + x / (n b))⁻ⁿ; the first neighbour exceeds the
    16th by the largest of 15 such variables (inclusion and exclusion).
    """
    gaps = np.arange(NEAR, FAR) * (a[:, NEAR - 1 : FAR - 1] - a[:, NEAR:FAR])
    own = gaps.mean(axis=1)
    count = gaps.shape[1] + _PRIOR
    middle = np.median(own) / (1 - 1 / (3 * gaps.shape[1]))  # the median of a mean of n gaps is below β by that factor
    beta = np.maximum((gaps.shape[1] * own + _PRIOR * middle) / count, 1e-9)
    terms = [(-1) ** (k + 1) * comb(NEAR - 1, k) * (1 + k * margin / (count * beta)) ** -count for k in range(1, NEAR)]
    return float(np.clip(sum(terms), 0.0, 1.0).sum())


def _fixed(value: float, count: int, reason: str) -> Threshold:
    return Threshold(value, np.full(count, value, dtype=np.float32), reason)


def similar_pairs(vectors: Features, found: Neighbours, limits: Features) -> list[tuple[int, int, float]]:
    """Return the pairs (i < j) of rows whose similarity reaches the limits [M] of both, and their similarities."""
    least = limits - np.float32(1e-6)  # what became a limit may be below it after arctanh and tanh
    near = found.similarities >= least[:, None]
    rows, columns = np.nonzero(near)
    pairs = dict(zip(_sorted(rows, found.rows[rows, columns]), found.similarities[rows, columns].tolist(), strict=True))
    full = np.flatnonzero(near.all(axis=1)) if near.shape[1] < len(vectors) - 1 else np.empty(0, dtype=np.int64)
    index: Any = _flat(vectors) if len(full) else None
    for start in range(0, len(full), _ROWS_AT_A_TIME):  # these may have more copies than there are neighbours
        part = full[start : start + _ROWS_AT_A_TIME]
        ends, similarities, others = index.range_search(vectors[part], float(least[part].min()))
        ours = np.repeat(part, np.diff(ends.astype(np.int64)))
        pairs |= dict(zip(_sorted(ours, others), similarities.tolist(), strict=True))
    return [(a, b, s) for (a, b), s in sorted(pairs.items()) if a != b and s >= max(least[a], least[b])]


def _sorted(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), strict=True))


def connected(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the groups that are connected by pairs, the largest first, then by their first member."""
    parent: dict[int, int] = {}

    def root(x: int) -> int:
        parent.setdefault(x, x)
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for x in sorted(parent):
        groups.setdefault(root(x), []).append(x)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def _flat(vectors: Features) -> Any:
    index = load_faiss("the search for near-duplicates").IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index
