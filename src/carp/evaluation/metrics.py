"""Measures of the agreement between predictions and labels.

Shapes: N images, C classes.
"""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import MissingExtraError
from carp.evaluation.feature_arrays import Labels


def clustering_metrics(truth: Labels, clusters: Labels) -> dict[str, float]:
    """Return the agreement of clusters [N] with classes [N]; 1 is perfect.

    NMI and AMI are divided by the arithmetic mean of the two entropies, scikit-learn's default. Accuracy is that of
    the best one-to-one matching of clusters and classes (Hungarian).
    """
    metrics = scikit_learn("metrics")
    return {
        "nmi": float(metrics.normalized_mutual_info_score(truth, clusters)),
        "ami": float(metrics.adjusted_mutual_info_score(truth, clusters)),
        "ari": float(metrics.adjusted_rand_score(truth, clusters)),
        "accuracy": matched_accuracy(truth, clusters),
        "homogeneity": float(metrics.homogeneity_score(truth, clusters)),
        "completeness": float(metrics.completeness_score(truth, clusters)),
    }


def matched_accuracy(truth: Labels, clusters: Labels) -> float:
    """Return the share of images whose cluster is matched with their class, in the best one-to-one matching."""
    return int((matched_classes(truth, clusters) == truth).sum()) / len(truth)


def matched_classes(truth: Labels, clusters: Labels) -> Labels:
    """Return the class [N] that the cluster of every image is matched with; -1 for a cluster without a class."""
    scikit_learn("metrics")  # also installs SciPy
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - optional

    counts = np.zeros((int(clusters.max()) + 1, int(truth.max()) + 1), dtype=np.int64)
    np.add.at(counts, (clusters, truth), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    class_of = np.full(len(counts), -1, dtype=np.int64)
    class_of[rows] = columns
    return class_of[clusters]


def mean_per_class(truth: Labels, right: NDArray[np.bool_]) -> float:
    """Return the mean, over the classes that occur in `truth` [N], of the share of correctly classified images."""
    counts = np.bincount(truth)
    hits = np.bincount(truth[right], minlength=len(counts))
    occurs = counts > 0
    return float(np.mean(hits[occurs] / counts[occurs]))


def average_precision(shown: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Return the average precision of one class in the two ways of PASCAL VOC.

    Args:
        shown: Which images show the class, [N].
        scores: Scores of the classifier, [N].

    Returns:
        The area under the interpolated curve (VOC 2010 and later, and the low-shot protocol that the paper follows),
        and the mean at 11 recalls (VOC 2007). The curve has one point per distinct score, so the order of images
        with equal scores does not matter.
    """
    order = np.argsort(-scores, kind="stable")
    last_of_score = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = np.cumsum(shown[order])[last_of_score]
    area, points = interpolated_precision(found, last_of_score + 1, int(shown.sum()))
    return area, float(np.mean(points))


def interpolated_precision(
    found: NDArray[np.integer[Any] | np.floating[Any]], retrieved: NDArray[np.integer[Any]], num_positives: int
) -> tuple[float, NDArray[np.float64]]:
    """Interpolate the precision-recall curve as PASCAL VOC does: the best precision at this recall or a higher one.

    Args:
        found: The number of positives among the first results, one per point of the curve, ascending.
        retrieved: The number of these results.
        num_positives: The total number of positives.

    Returns:
        The area under the curve, and the precision at the recalls 0, 0.1, … 1; 0 where that recall is not reached.
    """
    recall, precision = found / num_positives, found / retrieved
    best = np.maximum.accumulate(precision[::-1])[::-1]
    area = float(np.sum(np.diff(recall, prepend=0.0) * best))
    # Recall is compared as a whole number: 0.1 × 30 is not exact in floating point, 3 of 30 is
    at = np.searchsorted(10 * found, [tenth * num_positives for tenth in range(11)], side="left")
    return area, np.append(best, 0.0)[at]


def scikit_learn(module: str) -> Any:
    """Import a module of scikit-learn, which is optional."""
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise MissingExtraError("scikit-learn is not installed. Run `pip install 'carp-ssl[eval]'`.") from None
