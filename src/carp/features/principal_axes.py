"""Principal axes of features, for whitening. Shapes: F features, D axes that are kept."""

import numpy as np
from numpy.typing import NDArray

_KEPT = 1e-7  # of the largest variance: what is below is rounding of float32


def principal_axes(covariance: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variances [D], ascending, and axes [F, D] of a covariance [F, F], without axes of no variance."""
    variances, axes = np.linalg.eigh(covariance)
    kept = variances > _KEPT * variances[-1]
    return variances[kept], axes[:, kept]
