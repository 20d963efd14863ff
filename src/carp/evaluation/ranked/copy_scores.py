"""Scores of copy detection: is the original of an altered image the first result of a search?

The protocol is that of INRIA Copydays (Douze et al. 2009); docs/protocols.md lists every number.

Shapes: Q altered images, M originals, then distractors, F features.
"""

from collections import defaultdict

import numpy as np

from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, check_features
from carp.evaluation.ranked.copy_sets import CopySet
from carp.evaluation.ranked.ranking import Judged, ranked, ranks_of_positives, trapezoid_average_precision
from carp.evaluation.ranked.whitening import Whitening
from carp.evaluation.result import Result

_NONE = np.empty(0, dtype=np.int64)


def copy_detection(
    queries: Features,
    originals: Features,
    copies: CopySet,
    *,
    distractors: Features | None = None,
    whitening: Whitening | None = None,
    depth: int | None = 20,
) -> Result:
    """Search the originals for every altered image.

    Args:
        queries: Features [Q, F] of `copies.copies`.
        originals: Features [M, F] of `copies.originals`.
        copies: Which image is a copy of which.
        distractors: Features of further images in the database that are not originals.
        whitening: Applied to all features, if given.
        depth: Results per query that count, 20 in the script that the paper follows; None is all.

    Returns:
        `map_ATTACK` for every attack, `map_ATTACK_STRENGTH` where there are several strengths, `map` over all altered
        images, and `micro_ap`: the area under the precision-recall curve of all first results, ordered by similarity.
    """
    named = {"query": queries, "original": originals} | ({} if distractors is None else {"distractor": distractors})
    check_features(**named)
    for what, features, wanted in (("copies", queries, copies.copies), ("originals", originals, copies.originals)):
        if len(features) != len(wanted):
            raise DataError(f"{copies.name} has {len(wanted):,} {what}, but there are features of {len(features):,}.")
    database = originals if distractors is None else np.concatenate([originals, distractors])
    if whitening is not None:
        queries, database = whitening.apply(queries), whitening.apply(database)
    precisions, firsts = np.empty(len(queries)), list[tuple[float, bool]]()
    for found in ranked(queries, database):
        own = copies.copies[found.query].original
        ranks = ranks_of_positives(found.order, Judged(np.array([own]), _NONE))
        precisions[found.query] = trapezoid_average_precision(ranks if depth is None else ranks[ranks < depth], 1)
        firsts.append((found.nearest, int(found.order[0]) == own))
    values = _means(copies, precisions) | {"micro_ap": micro_average_precision(firsts)}
    settings = {
        "originals": len(originals),
        "copies": len(queries),
        "distractors": 0 if distractors is None else len(distractors),
        "whitening": "off" if whitening is None else whitening.dimensions,
        "depth": depth or "all",
    }
    return Result(values=values, settings=settings)


def _means(copies: CopySet, precisions: np.ndarray) -> dict[str, float]:
    """Return the mean average precision of every attack, of its strengths, and over all."""
    groups: dict[str, list[int]] = defaultdict(list)
    strengths: dict[str, dict[float | None, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, copy in enumerate(copies.copies):
        groups[copy.attack].append(place)
        strengths[copy.attack][copy.strength].append(place)
    values = {"map": float(precisions.mean())}
    for attack, members in groups.items():
        values[f"map_{attack}"] = float(precisions[members].mean())
        if len(strengths[attack]) > 1:
            for strength, part in sorted(strengths[attack].items(), key=lambda item: item[0] or 0.0):
                values[f"map_{attack}_{strength or 0:g}"] = float(precisions[part].mean())
    return values


def micro_average_precision(firsts: list[tuple[float, bool]]) -> float:
    """Return the sum of the precision at every correct first result, ordered by similarity, divided by the queries.

    Among equally similar results, wrong ones come first, so that nothing is gained by chance.
    """
    right = np.array([found for _, found in sorted(firsts, key=lambda first: (-first[0], first[1]))])
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    return float(precision[right].sum() / len(right))
