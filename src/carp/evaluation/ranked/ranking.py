"""Ranked lists by cosine similarity, and their measures.

A similarity depends on its two images alone, and among equally similar images of the database the first one counts as
nearer. So a ranked list depends neither on the batch nor on the order of the queries.

Shapes: Q queries, M images of the database, F features, P positives; small letters stand for a part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, norms, tensor

Indices = NDArray[np.int64]

# Products have one shape, padded with zeros, so that equal images have equal similarities wherever they are
_QUERIES_AT_A_TIME = 32
_DATABASE_AT_A_TIME = 1024


@dataclass(frozen=True)
class Judged:
    """The relevant images of one query in the database, and those that are ignored."""

    positives: Indices
    junk: Indices


@dataclass(frozen=True)
class Ranked:
    """The whole database in the order of its similarity to one query."""

    query: int
    order: Indices  # [M], nearest first
    nearest: float  # cosine of the first


def ranked(queries: Features, database: Features) -> Iterator[Ranked]:
    """Yield the ranked list of every query [Q, F] over the database [M, F].

    Memory is bounded: 32 similarities per image of the database are held at a time.
    """
    query_norms, scale_M = norms(queries, "query"), 1 / torch.from_numpy(norms(database, "database"))
    width = -(-len(database) // _DATABASE_AT_A_TIME) * _DATABASE_AT_A_TIME
    similarity_qM = torch.empty(_QUERIES_AT_A_TIME, width)
    for start in range(0, len(queries), _QUERIES_AT_A_TIME):
        part_qF = _filled_up(tensor(queries[start : start + _QUERIES_AT_A_TIME]), _QUERIES_AT_A_TIME)
        for first in range(0, len(database), _DATABASE_AT_A_TIME):
            last = first + _DATABASE_AT_A_TIME
            part_mF = _filled_up(tensor(database[first:last]), _DATABASE_AT_A_TIME)
            similarity_qM[:, first:last] = part_qF @ part_mF.T
        for row in range(min(_QUERIES_AT_A_TIME, len(queries) - start)):
            similarity_M = similarity_qM[row, : len(database)] * scale_M
            order = torch.argsort(similarity_M, descending=True, stable=True).numpy()
            yield Ranked(start + row, order, float(similarity_M[order[0]]) / float(query_norms[start + row]))


def _filled_up(part_nF: Tensor, rows: int) -> Tensor:
    missing = rows - len(part_nF)
    return torch.cat([part_nF, part_nF.new_zeros(missing, part_nF.shape[1])]) if missing else part_nF


def ranks_of_positives(order: Indices, judged: Judged) -> Indices:
    """Return the ranks [P] of the positives, counted from 0, as if junk were not in the list."""
    positives, junk = (_places(order, wanted) for wanted in (judged.positives, judged.junk))
    return positives - np.searchsorted(junk, positives)


def _places(order: Indices, wanted: Indices) -> Indices:
    chosen = np.zeros(len(order), dtype=np.bool_)
    chosen[wanted] = True
    return np.flatnonzero(chosen[order])


def trapezoid_average_precision(ranks: Indices, num_positives: int) -> float:
    """Return the area under the precision-recall curve by trapezoids, as for Holidays, Copydays and Oxford.

    Between two positives the precision goes from its value just before the later one to its value just after it;
    before anything is found it is 1. Positives that are missing in `ranks` (ascending, from 0) count as never found.
    This is not VOC's definition (`interpolated_precision` in metrics.py), which takes the best precision at this or a
    higher recall: published retrieval numbers use the former, those of classification and detection the latter.
    """
    before = np.arange(len(ranks))
    left = np.where(ranks == 0, 1.0, before / np.maximum(ranks, 1))
    right = (before + 1) / (ranks + 1)
    return float((left + right).sum() / (2 * num_positives))


def precision_at(ranks: Indices, k: int) -> float:
    """Return the share of positives among the first k results, or up to the last positive if that is earlier."""
    depth = min(k, int(ranks.max()) + 1)
    return int((ranks < depth).sum()) / depth


def check_judged(judged: Sequence[Judged], num_queries: int, num_images: int) -> None:
    """Raise an error unless every query is judged, and only images of the database are named."""
    if len(judged) != num_queries:
        raise DataError(
            f"the ground truth has {len(judged):,} queries, but there are features of {num_queries:,}. "
            "Give both for the same dataset."
        )
    for query in range(num_queries):
        for what, found in (("positives", judged[query].positives), ("junk", judged[query].junk)):
            if len(found) and not 0 <= int(found.min()) <= int(found.max()) < num_images:
                wrong = int(found.max()) if int(found.max()) >= num_images else int(found.min())
                raise DataError(
                    f"the {what} of query {query} name image {wrong}, but the database has {num_images:,} images, "
                    "counted from 0. Give both for the same dataset."
                )
