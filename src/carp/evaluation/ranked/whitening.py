"""PCA whitening, learned from the features of one set and applied to those of others.

Vectors are divided by their length, centred and rotated to the principal axes, and every axis is divided by its
standard deviation. They are compared by their cosine, so whitened vectors are not normalised again.

Shapes: N images, F features, D dimensions that are kept.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, check_features, norms, spans
from carp.features.principal_axes import principal_axes

_SAME = 1e-12  # variance of vectors of length 1 that differ by rounding only


@dataclass(frozen=True)
class Whitening:
    """A mean [F], and axes [D, F], the first with the largest variance, each divided by its deviation."""

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]

    @property
    def dimensions(self) -> int:
        """D, the length of whitened vectors."""
        return len(self.axes)

    def apply(self, features: Features) -> Features:
        """Return whitened vectors [N, D] of features [N, F]."""
        check_features(whitened=features)
        if features.shape[1] != len(self.mean):
            raise DataError(
                f"the whitening was learned from {len(self.mean)} features per image, received {features.shape[1]}. "
                "Take both from the same encoder."
            )
        lengths = norms(features)
        found = np.empty((len(features), self.dimensions), dtype=np.float32)
        for start, stop in spans(features):
            unit = features[start:stop] / lengths[start:stop, None].astype(np.float64)
            found[start:stop] = (unit - self.mean) @ self.axes.T
        return found


def fit_whitening(features: Features) -> Whitening:
    """Learn a whitening from the features [N, F] of a set that is not evaluated; keep all axes that have variance."""
    check_features(whitening=features)
    if len(features) < 2:
        raise DataError(f"whitening needs at least 2 images to learn from, received {len(features)}. Give more images.")
    lengths, width = norms(features, "whitening"), features.shape[1]
    total, squares = np.zeros(width), np.zeros((width, width))
    for start, stop in spans(features):
        unit = features[start:stop] / lengths[start:stop, None].astype(np.float64)
        total += unit.sum(axis=0)
        squares += unit.T @ unit
    mean = total / len(features)
    variances, axes = principal_axes((squares - len(features) * np.outer(mean, mean)) / (len(features) - 1))
    variances, axes = variances[::-1], axes[:, ::-1].T
    if not len(variances) or variances[0] < _SAME:
        raise DataError("whitening cannot be learned, because all images have the same features: give other images.")
    # A cosine does not depend on the signs of the axes; they are chosen so that results are the same everywhere
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    return Whitening(mean, (axes * (signs / np.sqrt(variances.clip(min=1e-300)))[:, None])[: len(features) - 1].copy())
