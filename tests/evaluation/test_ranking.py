"""Ranked lists and their measures against plain loops."""

import numpy as np
import pytest

from carp.errors import DataError
from carp.evaluation.ranked.ranking import (
    Judged,
    check_judged,
    precision_at,
    ranked,
    ranks_of_positives,
    trapezoid_average_precision,
)

NONE = np.empty(0, dtype=np.int64)


def plain_average_precision(order: list[int], positives: set[int], junk: set[int]) -> float:
    """By the definition: take junk out of the list, then add a trapezoid for every positive."""
    kept = [image for image in order if image not in junk]
    area, found = 0.0, 0
    for place, image in enumerate(kept):
        if image in positives:
            before = found / place if place else 1.0
            found += 1
            area += (before + found / (place + 1)) / 2 / len(positives)
    return area


def plain_precision(order: list[int], positives: set[int], junk: set[int], k: int) -> float:
    kept = [image for image in order if image not in junk]
    last = max(place for place, image in enumerate(kept) if image in positives) + 1
    depth = min(k, last)
    return sum(image in positives for image in kept[:depth]) / depth


def test_measures_on_thousands_of_random_lists_with_junk() -> None:
    draw = np.random.default_rng(0)
    for _ in range(3000):
        size = int(draw.integers(1, 40))
        order = draw.permutation(size)
        kinds = draw.choice(3, size, p=draw.dirichlet([1, 1, 1]))
        positives, junk = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 2)
        if not len(positives):
            continue
        ranks = ranks_of_positives(order, Judged(positives, junk))
        plain = order.tolist(), set(positives.tolist()), set(junk.tolist())
        assert trapezoid_average_precision(ranks, len(positives)) == pytest.approx(
            plain_average_precision(*plain), abs=1e-12
        )
        for k in (1, 5, 10):
            assert precision_at(ranks, k) == plain_precision(*plain, k)


def test_values_by_hand() -> None:
    assert trapezoid_average_precision(np.array([0, 1, 2]), 3) == 1.0
    assert trapezoid_average_precision(np.array([1]), 1) == 0.25  # (0 + 1/2) / 2
    assert trapezoid_average_precision(np.array([0]), 2) == 0.5  # the second is never found
    assert trapezoid_average_precision(NONE, 2) == 0.0
    assert precision_at(np.array([0, 1]), 10) == 1.0  # both are among the first two: there is nothing behind
    assert precision_at(np.array([0, 3]), 10) == 0.5
    assert precision_at(np.array([2]), 1) == 0.0


def test_an_image_that_is_junk_as_well_counts_as_found_and_shifts_those_behind_it() -> None:
    """As in the published evaluation."""
    ranks = ranks_of_positives(np.array([2, 0, 1]), Judged(np.array([0, 1]), np.array([0])))
    assert ranks.tolist() == [1, 1]


def test_ranked_lists_against_a_full_sort() -> None:
    draw = np.random.default_rng(1)
    queries, database = (draw.standard_normal((n, 24)).astype(np.float32) for n in (70, 2100))
    unit = [x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, database)]
    similarity = unit[0] @ unit[1].T
    lists = list(ranked(queries, database))
    assert [found.query for found in lists] == list(range(70))
    for found in lists:
        row = similarity[found.query]
        assert sorted(found.order.tolist()) == list(range(2100))
        assert np.all(np.diff(row[found.order]) < 1e-6)
        assert found.nearest == pytest.approx(row.max(), abs=1e-6)


def test_equals_are_in_the_order_of_the_database_wherever_they_stand() -> None:
    draw = np.random.default_rng(2)
    few = draw.standard_normal((9, 257)).astype(np.float32)
    which = draw.integers(0, 9, 3000)
    for found in ranked(draw.standard_normal((40, 257)).astype(np.float32), few[which]):
        groups = which[found.order]
        changes = np.flatnonzero(np.diff(groups))
        assert len(changes) == 8, "copies of an image stand together"
        for part in np.split(found.order, changes + 1):
            assert np.all(np.diff(part) > 0)


def test_a_list_does_not_depend_on_the_other_queries() -> None:
    draw = np.random.default_rng(3)
    queries, database = (draw.standard_normal((n, 96)).astype(np.float32) for n in (100, 1500))
    together = [found.order for found in ranked(queries, database)]
    shuffled = draw.permutation(100)
    for place, found in zip(shuffled, ranked(queries[shuffled], database), strict=True):
        assert np.array_equal(found.order, together[place])
    for place in (0, 31, 32, 99):
        alone = next(ranked(queries[place : place + 1], database))
        assert np.array_equal(alone.order, together[place])


def test_features_of_zeros_are_similar_to_nothing() -> None:
    database = np.eye(3, dtype=np.float32)
    database[1] = 0
    found = next(ranked(np.array([[1, -1, -1]], dtype=np.float32), database))
    assert found.order.tolist() == [0, 1, 2]


def test_judgements_that_do_not_fit() -> None:
    judged = [Judged(np.array([0, 5]), NONE)]
    check_judged(judged, 1, 6)
    with pytest.raises(DataError, match="1 queries, but there are features of 2"):
        check_judged(judged, 2, 6)
    with pytest.raises(DataError, match="positives of query 0 name image 5, but the database has 5 images"):
        check_judged(judged, 1, 5)
    with pytest.raises(DataError, match="junk of query 0 name image -1"):
        check_judged([Judged(NONE, np.array([-1]))], 1, 5)
