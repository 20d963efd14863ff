"""Counts, durations and bytes as text."""

import pytest

from carp.console.quantities import clock, counted, duration, duration_range, in_bytes


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "0.012 s"),
        (0.84, "0.84 s"),
        (12.3, "12 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5000, "83 min"),
        (7800, "2 h 10 min"),
        (3600 * 47.5, "47 h 30 min"),
        (3600 * 76, "3 days 4 h"),
    ],
)
def test_durations_use_the_largest_units_that_matter(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_range_of_nearly_equal_durations_is_one_duration() -> None:
    assert duration_range(100, 104) == "2 min"
    assert duration_range(120, 300) == "2 min to 5 min"


def test_counts_have_their_plural_and_clocks_their_zeros() -> None:
    assert [counted(n, "image") for n in (0, 1, 1200)] == ["0 images", "1 image", "1,200 images"]
    assert [clock(s) for s in (5, 65, 3909)] == ["0:00:05", "0:01:05", "1:05:09"]
    assert [in_bytes(n) for n in (12, 2**10, 40 * 2**30)] == ["12 bytes", "1.0 KiB", "40.0 GiB"]
