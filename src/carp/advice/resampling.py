"""Intervals for means over images, by resampling the images (bootstrap).

Shapes: N images, R resamples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.random import Purpose, key, uniforms

_RESAMPLES = 1000
_OUTSIDE = (2.5, 97.5)  # percentiles: an interval of 95%
_CANNOT_BE_SEEN = 3.0  # what never happened in N images may have a share of up to 3 / N ("rule of three")


@dataclass(frozen=True)
class Interval:
    """A mean with its standard error and an interval of 95%."""

    value: float
    low: float
    high: float
    error: float
    images: int

    def text(self) -> str:
        """In percent: '41.0% (36.1 to 45.8)'."""
        return f"{100 * self.value:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f})"

    def points(self) -> str:
        """A difference, in percentage points: '+3.1 points (-0.4 to +6.5)'."""
        return f"{100 * self.value:+.1f} points ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def interval(values_N: NDArray[np.float64], least: float = 0.0) -> Interval:
    """Return the mean of one value per image, each from `least` to 1.

    Resamples of equal values are equal. The interval of such values is widened by what so few images cannot show.
    """
    number = len(values_N)
    draws_RN = (uniforms(key(0, Purpose.BOOTSTRAP, np.arange(_RESAMPLES)), number) * number).astype(np.int64)
    low, high = np.percentile(values_N[draws_RN].mean(axis=1), _OUTSIDE)
    mean, unseen = float(values_N.mean()), min(1.0, _CANNOT_BE_SEEN / number)
    if low == high:
        low, high = max(mean - unseen, least), min(mean + unseen, 1.0)
    error = float(values_N.std(ddof=1)) / number**0.5 if number > 1 else 1.0
    return Interval(mean, float(low), float(high), error, number)


def difference(ours_N: NDArray[np.float64], theirs_N: NDArray[np.float64]) -> Interval:
    """Return how much larger the first mean is, over the same images."""
    return interval(ours_N - theirs_N, least=-1.0)
