"""Average precision against plain loops over VOC's rules, and by hand."""

import numpy as np
import pytest

from carp.evaluation.detection.voc_metric import OVERLAPS, Boxes, average_precisions, overlaps


def plain_overlap(one: np.ndarray, other: np.ndarray) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return width * height / (both - width * height)


def plain_ap(found: list[Boxes], truth: list[Boxes], number: int, least: float) -> tuple[float, float]:
    """One class at one overlap, a detection at a time: by eleven points and by the area."""
    detections = []
    for image, boxes in enumerate(found):
        for corners, kind, score in zip(boxes.corners, boxes.classes, boxes.scores, strict=True):
            if kind == number:
                detections.append((-score, image, corners))
    detections.sort(key=lambda one: one[0])
    used: set[tuple[int, int]] = set()
    count = sum(
        1 for boxes in truth for k, d in zip(boxes.classes, boxes.scores, strict=True) if k == number and d == 0
    )
    if count == 0:
        return float("nan"), float("nan")
    hits, errors, curve = 0, 0, []
    for _, image, corners in detections:
        best, which = -1.0, -1
        for place, (kind, theirs) in enumerate(zip(truth[image].classes, truth[image].corners, strict=True)):
            if kind == number and plain_overlap(corners, theirs) > best:
                best, which = plain_overlap(corners, theirs), place
        if best > least:
            if truth[image].scores[which] > 0:
                continue
            if (image, which) in used:
                errors += 1
            else:
                used.add((image, which))
                hits += 1
        else:
            errors += 1
        curve.append((hits, hits / (hits + errors)))
    points = [max([p for h, p in curve if 10 * h >= t * count], default=0.0) for t in range(11)]
    area = sum(max([p for h, p in curve if h >= wanted], default=0.0) for wanted in range(1, count + 1)) / count
    return sum(points) / 11, area


def random_boxes(rng: np.random.Generator, images: int, classes: int) -> tuple[list[Boxes], list[Boxes]]:
    found, truth = [], []
    for _ in range(images):
        n = int(rng.integers(0, 6))
        corner = rng.uniform(0, 60, (n, 2))
        objects = np.concatenate([corner, corner + rng.uniform(5, 40, (n, 2))], axis=1)
        truth.append(Boxes(objects, rng.integers(0, classes, n), (rng.random(n) < 0.3).astype(float)))
        near = np.repeat(objects, 3, axis=0) + rng.normal(0, 2.5, (3 * n, 4))
        far = rng.uniform(0, 50, (2, 2))
        boxes = np.concatenate([near, np.concatenate([far, far + 20], axis=1)])
        kinds = np.concatenate([np.repeat(truth[-1].classes, 3), rng.integers(0, classes, 2)])
        found.append(Boxes(boxes, kinds, rng.random(len(boxes))))
    return found, truth


@pytest.mark.parametrize("seed", range(6))
def test_equals_plain_loops(seed: int) -> None:
    found, truth = random_boxes(np.random.default_rng(seed), 12, 3)
    eleven, area = average_precisions(found, truth, 4)
    for number in range(4):  # nothing is of the last class
        for place, least in enumerate(OVERLAPS):
            expected = plain_ap(found, truth, number, least)
            np.testing.assert_allclose((eleven[number, place], area[number, place]), expected, rtol=0, atol=1e-12)
    assert 0.05 < np.nanmean(eleven[:, 0]) < 0.95
    assert np.isnan(eleven[3]).all()


def boxes(*rows: tuple[float, ...]) -> Boxes:
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return Boxes(table[:, :4], table[:, 4].astype(np.int64), table[:, 5])


def test_by_hand() -> None:
    truth = [boxes((0, 0, 10, 10, 0, 0), (20, 0, 30, 10, 0, 1)), boxes((0, 0, 10, 10, 0, 0))]
    right, difficult, twice = (0, 0, 10, 10, 0, 0.9), (20, 0, 30, 10, 0, 0.8), (0, 0, 10, 9, 0, 0.7)
    found = [boxes(right, difficult, twice), boxes((0, 0, 10, 10, 0, 0.6))]
    eleven, area = average_precisions(found, truth, 1)
    # right, (difficult does not count), twice is an error, right: precision 1, 1/2, 2/3
    assert area[0, 0] == pytest.approx((1 + 2 / 3) / 2)
    assert eleven[0, 0] == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)


def test_exactly_half_is_not_enough() -> None:
    truth, found = [boxes((0, 0, 10, 10, 0, 0))], [boxes((0, 0, 10, 5, 0, 1))]
    assert overlaps(found[0].corners, truth[0].corners)[0, 0] == 0.5
    assert average_precisions(found, truth, 1)[0][0, 0] == 0


def test_nothing_found_and_nothing_there() -> None:
    empty = boxes()
    eleven, area = average_precisions([empty, empty], [boxes((0, 0, 1, 1, 1, 0)), empty], 3)
    assert eleven[1].tolist() == area[1].tolist() == [0.0] * 10
    assert np.isnan(eleven[[0, 2]]).all()
