"""Average precision of detections, as VOC's own evaluation defines it, at ten overlaps.

An object marked as difficult need not be found, and finding it is not an error.

Shapes: D detections of a class in all images, O objects of a class in an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.evaluation.metrics import interpolated_precision

Floats = NDArray[np.float64]
OVERLAPS = tuple(float(percent) / 100 for percent in range(50, 100, 5))


@dataclass(frozen=True)
class Boxes:
    """Boxes of one image: corners [N, 4] (left, top, right, bottom), classes [N], and scores or marks."""

    corners: Floats
    classes: NDArray[np.int64]
    scores: Floats
    """Scores of detections; for objects, 1 if marked as difficult and 0 otherwise."""


def average_precisions(found: Sequence[Boxes], truth: Sequence[Boxes], num_classes: int) -> tuple[Floats, Floats]:
    """Return the AP of every class at every overlap, [classes, overlaps]: by VOC 2007's eleven points, and by the area.

    It is NaN for a class without objects to find.
    """
    eleven, area = (np.full((num_classes, len(OVERLAPS)), np.nan) for _ in range(2))
    for number in range(num_classes):
        hits, count = _hits(found, truth, number)
        if count:
            for place in range(len(OVERLAPS)):
                counted = hits[hits[:, place] >= 0, place]
                area[number, place], points = interpolated_precision(
                    np.cumsum(counted), np.arange(1, len(counted) + 1), count
                )
                eleven[number, place] = sum(points.tolist()) / len(points)
    return eleven, area


def _hits(found: Sequence[Boxes], truth: Sequence[Boxes], number: int) -> tuple[NDArray[np.int8], int]:
    """Judge detections [D, overlaps], best score first: 1 is a hit, 0 an error, -1 not counted; and count objects."""
    scores, hits, count = list[Floats](), list[NDArray[np.int8]](), 0
    for ours, theirs in zip(found, truth, strict=True):
        mine, objects = ours.classes == number, theirs.classes == number
        difficult = theirs.scores[objects] > 0
        count += int((~difficult).sum())
        order = np.argsort(-ours.scores[mine], kind="stable")
        scores.append(ours.scores[mine][order])
        hits.append(_in_image(overlaps(ours.corners[mine][order], theirs.corners[objects]), difficult))
    by_score = np.argsort(-np.concatenate(scores), kind="stable")
    return np.concatenate(hits)[by_score], count


def _in_image(overlap_DO: Floats, difficult: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Judge the detections of an image, best first: each is assigned to the object that it overlaps most."""
    hits = np.zeros((len(overlap_DO), len(OVERLAPS)), dtype=np.int8)
    if not overlap_DO.size:
        return hits
    nearest, most = overlap_DO.argmax(axis=1), overlap_DO.max(axis=1)
    for place, least in enumerate(OVERLAPS):
        taken = np.zeros(len(difficult), dtype=np.bool_)
        for row in np.flatnonzero(most > least):
            one = nearest[row]
            if difficult[one]:
                hits[row, place] = -1
            elif not taken[one]:
                hits[row, place], taken[one] = 1, True
    return hits


def overlaps(ours: Floats, theirs: Floats) -> Floats:
    """Return the intersection over union of every pair of boxes, [D, O]."""
    left_top = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    right_bottom = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    common = (right_bottom - left_top).clip(min=0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(min=0).prod(axis=1) for boxes in (ours, theirs)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-12), dtype=np.float64)
