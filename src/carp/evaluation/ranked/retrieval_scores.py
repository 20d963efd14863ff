"""Scores of image retrieval: how high the relevant images are in the ranked list of a query.

The measures are those of the revisited Oxford and Paris sets (Radenović et al. 2018); docs/protocols.md lists every
number. Other sets have one level and values without its name.

Shapes: Q queries, M images of the database, F features.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, check_features
from carp.evaluation.ranked.ranking import (
    Judged,
    check_judged,
    precision_at,
    ranked,
    ranks_of_positives,
    trapezoid_average_precision,
)
from carp.evaluation.ranked.whitening import Whitening
from carp.evaluation.result import Result

Truth = Mapping[str, Sequence[Judged]]  # by level: `easy`, `medium`, `hard`; or one level without a name


def retrieval(
    queries: Features,
    database: Features,
    truth: Truth,
    *,
    ks: Sequence[int] = (1, 5, 10),
    whitening: Whitening | None = None,
) -> Result:
    """Rank the database [M, F] for every query [Q, F] and compare with the ground truth.

    Args:
        queries: Features of the queries, cropped to their boxes.
        database: Features of the images that are searched.
        truth: For every level, the judged images of every query.
        ks: Depths at which the precision is measured.
        whitening: Applied to all features, if given.

    Returns:
        For every level `map_LEVEL` and `mp1_LEVEL`, `mp5_LEVEL` …: means over the queries that have positives; queries
        without positives are left out. The details record their number, and the average precision of every query.
    """
    if not truth:
        raise DataError("the ground truth has no levels. Give at least one.")
    check_features(queries=queries, database=database)
    for judged in truth.values():
        check_judged(judged, len(queries), len(database))
    if whitening is not None:
        queries, database = whitening.apply(queries), whitening.apply(database)
    scores: dict[str, list[list[float] | None]] = {level: [] for level in truth}
    for found in ranked(queries, database):
        for level, judged in truth.items():
            scores[level].append(_scores(found.order, judged[found.query], ks))
    values, details = dict[str, float](), dict[str, object]()
    names = ["map", *(f"mp{k}" for k in ks)]
    for level, rows in scores.items():
        counted = [row for row in rows if row is not None]
        ending = f"_{level}" if level else ""
        details[f"ap{ending}"] = [None if row is None else row[0] for row in rows]
        details[f"left_out{ending}"] = len(rows) - len(counted)
        if counted:
            values |= {f"{n}{ending}": float(v) for n, v in zip(names, np.mean(counted, axis=0), strict=True)}
    if not values:
        raise DataError(
            "no query has a relevant image in the database. Check that the ground truth belongs to these images."
        )
    settings = {
        "queries": len(queries),
        "database": len(database),
        "ks": list(ks),
        "whitening": whitening.dimensions if whitening is not None else "off",
    }
    return Result(values=values, settings=settings, details=details)


def _scores(order: np.ndarray, judged: Judged, ks: Sequence[int]) -> list[float] | None:
    """Average precision, then precision at every k; None without positives."""
    if not len(judged.positives):
        return None
    ranks = ranks_of_positives(order, judged)
    return [trapezoid_average_precision(ranks, len(ranks)), *(precision_at(ranks, k) for k in ks)]
