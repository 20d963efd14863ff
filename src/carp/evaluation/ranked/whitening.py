"""PCA whitening, learned on the features of one set and applied to those of others.

Vectors are divided by their length, centred, turned to the principal axes, and every axis is divided by its deviation.
What follows is a cosine, so that the length is taken out again there.

Shapes: N images, F features, D dimensions that are kept.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.inputs import Features, check_features, norms, spans
from carp.files.atomic import replacing
from carp.files.regular import check_regular

_KEPT = 1e-7  # of the largest variance: what is below is rounding of float32
_SAME = 1e-12  # variance of vectors of length 1 that differ by rounding only
_NAMES = ("mean", "axes")


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
        """Whitened vectors [N, D] of features [N, F]."""
        check_features(whitened=features)
        if features.shape[1] != len(self.mean):
            raise DataError(
                f"the whitening was learned on {len(self.mean)} features an image, received {features.shape[1]}. "
                "Take both from the same encoder."
            )
        lengths = norms(features)
        found = np.empty((len(features), self.dimensions), dtype=np.float32)
        for start, stop in spans(features):
            unit = features[start:stop] / lengths[start:stop, None].astype(np.float64)
            found[start:stop] = (unit - self.mean) @ self.axes.T
        return found

    def save(self, path: Path) -> None:
        """Write as .npz, without pickles."""
        try:
            with replacing(path) as beside, beside.open("wb") as file:
                np.savez(file, mean=self.mean, axes=self.axes)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror or error}.") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; nothing is unpickled."""
        try:
            check_regular(path)
            with np.load(path, allow_pickle=False) as stored:
                mean, axes = (stored[name] for name in _NAMES)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or 'it is no .npz file'}.") from error
        except Exception as error:  # a damaged archive raises nearly anything
            raise DataError(f"{path} is no whitening: it must be an .npz file with {' and '.join(_NAMES)}.") from error
        shapes_fit = mean.ndim == 1 and axes.ndim == 2 and axes.shape[1] == len(mean) and len(axes)
        if not shapes_fit or {mean.dtype, axes.dtype} != {np.dtype(np.float64)}:
            raise DataError(f"{path} is no whitening: mean {mean.shape} and axes {axes.shape} do not fit together.")
        return cls(mean, axes)


def fit_whitening(features: Features, *, dimensions: int | None = None) -> Whitening:
    """Learn a whitening of features [N, F].

    Args:
        features: Features of a set that is not evaluated.
        dimensions: Axes that are kept, those of the largest variance; None keeps all that have any.
    """
    check_features(whitening=features)
    if len(features) < 2:
        raise DataError(f"whitening is learned from at least 2 images, received {len(features)}.")
    lengths, width = norms(features, "whitening"), features.shape[1]
    total, squares = np.zeros(width), np.zeros((width, width))
    for start, stop in spans(features):
        unit = features[start:stop] / lengths[start:stop, None].astype(np.float64)
        total += unit.sum(axis=0)
        squares += unit.T @ unit
    mean = total / len(features)
    variances, axes = np.linalg.eigh((squares - len(features) * np.outer(mean, mean)) / (len(features) - 1))
    variances, axes = variances[::-1], axes[:, ::-1].T
    usable = min(int((variances > _KEPT * max(variances[0], 0.0)).sum()), len(features) - 1)
    if not usable or variances[0] < _SAME:
        raise DataError("whitening cannot be learned: all images have the same features.")
    kept = usable if dimensions is None else dimensions
    if not 1 <= kept <= usable:
        raise DataError(
            f"whitening to {kept} dimensions is not possible: {len(features):,} images with {width} features have "
            f"variance in {usable}. Lower the number or learn it on more images."
        )
    # Which end of an axis is positive is no matter to a cosine; it is chosen so that results are the same everywhere.
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    return Whitening(mean, (axes * (signs / np.sqrt(variances.clip(min=1e-300)))[:, None])[:kept].copy())
