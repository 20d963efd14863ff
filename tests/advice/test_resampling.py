"""Intervals: what they cover, and what few images cannot show."""

import numpy as np
import pytest

from carp.advice.resampling import difference, interval


def test_an_interval_is_that_of_the_normal_approximation() -> None:
    values = (np.random.default_rng(0).uniform(size=400) < 0.3).astype(np.float64)
    found = interval(values)
    assert found.value == values.mean()
    assert found.error == pytest.approx((found.value * (1 - found.value) / 400) ** 0.5, rel=0.01)
    assert found.low == pytest.approx(found.value - 1.96 * found.error, abs=0.006)
    assert found.high == pytest.approx(found.value + 1.96 * found.error, abs=0.006)
    assert found == interval(values)


@pytest.mark.parametrize(("value", "low", "high"), [(1.0, 0.97, 1.0), (0.0, 0.0, 0.03)])
def test_a_hundred_equal_values_are_not_certainty(value: float, low: float, high: float) -> None:
    found = interval(np.full(100, value))
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


def test_a_single_image_says_nothing() -> None:
    assert interval(np.ones(1)).low == 0.0


def test_a_difference_is_measured_on_the_same_images() -> None:
    random = np.random.default_rng(1)
    hard = (random.uniform(size=300) < 0.5).astype(np.float64)
    better = np.maximum(hard, random.uniform(size=300) < 0.1)
    found = difference(better, hard)
    assert found.low > 0
    assert found.high - found.low < interval(better).high - interval(better).low  # pairs share what is hard
    same = difference(hard, hard)
    assert same.low < 0 < same.high
