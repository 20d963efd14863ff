"""Weighted k-nearest-neighbour classification, as in the paper's appendix.

The similarity is the cosine; each of the k nearest images of the bank votes for its class with exp(similarity / τ).
One pass over the bank serves all k. Among equally similar images, the first in the bank counts as nearer; among classes
with equal votes, the one with the lower number wins; a class without a vote is never predicted.

The bank may be larger than memory: it is read once, in parts, and each part is compared with a few hundred
queries at a time; only the k largest similarities of every query are kept. Under torchrun every process answers a share
of the queries, and all processes get all answers.

Shapes: Q queries, M images in the bank, F features, K the largest number of neighbours, C classes; small letters
stand for a part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.compute import distributed
from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, Labels, Progress, check_classes, check_pair, silent, tensor
from carp.evaluation.metrics import mean_per_class
from carp.evaluation.result import Predicted, Result

_TEMPERATURE = 0.07  # as in the paper
_QUERIES_AT_A_TIME = 512
_BANK_AT_A_TIME = 50_176  # of float32 similarities to 512 queries: 100 MB
_SELECT_AT_A_TIME = 64
_SMALLEST_PRODUCT = 256  # columns; see _filled_up
_GROUP = 16  # columns per group: see _largest
_LAST = 2**32 - 1
_CPU = torch.device("cpu")


def knn(
    bank: Features,
    bank_labels: Labels | None,
    queries: Features | None,
    query_labels: Labels | None,
    *,
    k: Sequence[int] = (10, 20, 100, 200),
    temperature: float = _TEMPERATURE,
    predict: bool = False,
    progress: Progress = silent,
) -> Result:
    """Classify queries [Q, F] by their nearest neighbours in the bank [M, F], for several k at once.

    Without queries (None and None), every image of the bank is a query against all others.

    Args:
        bank: Features of the images that vote.
        bank_labels: Their classes.
        queries: Features of the images that are classified.
        query_labels: Their classes.
        k: How many of the nearest images vote; one number or several.
        temperature: τ of the vote exp(similarity / τ): the smaller it is, the more the nearest count.
        predict: Also return a prediction for every query; its score is its share of the votes.
        progress: Called with (queries done, all).

    Returns:
        For every k, `top1@k`, with more than five classes `top5@k`, and `mean_per_class@k`: the mean over the classes
        of the queries of the share that is classified correctly.
    """
    ks = sorted(set(k))
    alone = queries is None
    if queries is None:
        if query_labels is not None:
            raise DataError("k-NN received labels of queries without their features: give both, or neither.")
        queries, query_labels = bank, bank_labels
    for each in ks:
        check_neighbours(each, len(bank), leave_one_out=alone)
    bank_norms, query_norms = check_pair(bank, queries)
    labels, truth, num_classes = check_classes(bank, bank_labels, queries, query_labels)
    own = _own_queries(len(queries))
    keys_qK = _neighbours(bank, bank_norms, queries, max(ks), leave_one_out=alone, own=own, progress=progress)
    votes = _Votes(keys_qK, query_norms[own], labels, ks, temperature, num_classes)
    places = _places(votes, truth[own])
    values = {f"top1@{n}": float((place_Q < 1).mean()) for n, place_Q in places.items()}
    if num_classes > 5:
        values |= {f"top5@{n}": float((place_Q < 5).mean()) for n, place_Q in places.items()}
    values |= {f"mean_per_class@{n}": mean_per_class(truth, place_Q < 1) for n, place_Q in places.items()}
    settings = {"k": ks, "temperature": temperature, "leave_one_out": alone}
    return Result(values=values, settings=settings, predicted=_predicted(votes) if predict else {})


def knn_accuracy(
    bank: Features,
    bank_labels: Labels,
    queries: Features,
    query_labels: Labels,
    *,
    k: int = 20,
    device: torch.device = _CPU,
) -> float:
    """Return the share of queries [Q, F] whose class wins the vote of their k nearest in the bank [M, F].

    Similarities are computed and compared on the device; each part of the features is moved there once.
    """
    return _accuracy(bank, bank_labels, queries, query_labels, k, leave_one_out=False, device=device)


def knn_leave_one_out(features: Features, labels: Labels, *, k: int = 20, device: torch.device = _CPU) -> float:
    """Return the same accuracy with every image as a query against all others."""
    return _accuracy(features, labels, features, labels, k, leave_one_out=True, device=device)


def nearest(
    bank: Features, queries: Features, k: int, *, leave_one_out: bool = False, progress: Progress = silent
) -> tuple[Features, Labels]:
    """Cosines [Q, k] of queries with their k nearest images of the bank, nearest first, and the rows of these.

    With `leave_one_out`, the queries are the bank itself, and no image is its own neighbour. Every process of a
    distributed run computes all of them.
    """
    check_neighbours(k, len(bank), leave_one_out=leave_one_out)
    bank_norms, query_norms = check_pair(bank, queries)
    keys_QK = _neighbours(bank, bank_norms, queries, k, leave_one_out=leave_one_out, progress=progress)
    similarity_QK, rows_QK = _read_key(keys_QK)
    cosine_QK: Features = (similarity_QK.numpy() / query_norms[:, None]).astype(np.float32)
    return cosine_QK, rows_QK.numpy()


def check_neighbours(k: int, num_images: int, *, leave_one_out: bool) -> None:
    """Raise unless a bank of this many images has k neighbours for every query."""
    if num_images < k + leave_one_out:
        raise DataError(
            f"k-NN with k = {k} needs at least {k + leave_one_out} images in the bank, received {num_images}. "
            "Lower k or add images."
        )


def _accuracy(
    bank: Features,
    bank_labels: Labels,
    queries: Features,
    query_labels: Labels,
    k: int,
    *,
    leave_one_out: bool,
    device: torch.device,
) -> float:
    """Measure accuracy during training, where the bank may be a small sample that lacks a class of the queries."""
    check_neighbours(k, len(bank), leave_one_out=leave_one_out)
    if bank_labels.ndim != 1 or len(bank) != len(bank_labels) or len(queries) != len(query_labels):
        raise DataError(
            f"k-NN needs one label per image, received labels of shape {bank_labels.shape} for {len(bank)} images."
        )
    bank_norms, query_norms = check_pair(bank, queries)
    own = _own_queries(len(queries))
    keys_qK = _neighbours(bank, bank_norms, queries, k, leave_one_out=leave_one_out, own=own, device=device)
    num_classes = int(max(bank_labels.max(), query_labels.max())) + 1
    votes = _Votes(keys_qK, query_norms[own], bank_labels, [k], _TEMPERATURE, num_classes)
    places = _places(votes, query_labels[own])
    return float((places[k] < 1).mean())


def _own_queries(num_queries: int) -> slice:
    """Return the queries that this process answers: whole tiles, so that rounding does not depend on the processes."""
    tiles = distributed.own_share(-(-num_queries // _QUERIES_AT_A_TIME))
    first, last = (min(tile * _QUERIES_AT_A_TIME, num_queries) for tile in (tiles.start, tiles.stop))
    return slice(first, last)


def _neighbours(
    bank: Features,
    bank_norms: Features,
    queries: Features,
    k: int,
    *,
    leave_one_out: bool,
    own: slice | None = None,
    progress: Progress = silent,
    device: torch.device = _CPU,
) -> Tensor:
    """Return the keys [q, k] of the k nearest images of the bank, nearest first, for own queries; for all if None.

    The length of a query does not affect the order of its neighbours, so queries are not normalised.
    """
    own = own or slice(0, len(queries))
    num_own = own.stop - own.start
    keys_qK = torch.full((num_own, k), torch.iinfo(torch.int64).min, device=device)
    rows = min(_QUERIES_AT_A_TIME, -(-len(queries) // _SELECT_AT_A_TIME) * _SELECT_AT_A_TIME)
    width = min(_BANK_AT_A_TIME, max(_SMALLEST_PRODUCT, -(-len(bank) // _GROUP) * _GROUP))
    tile_qm = torch.empty(rows, width, device=device)
    for first in range(0, len(bank), width):
        scale_m = 1 / tensor(bank_norms[first : first + width]).to(device)
        part_mF = _filled_up(tensor(bank[first : first + width]).to(device), _SMALLEST_PRODUCT)
        for start in range(0, num_own, rows):
            stop = min(start + rows, num_own)
            query_qF = _filled_up(tensor(queries[own.start + start : own.start + stop]).to(device), rows)
            torch.mm(query_qF, part_mF.T, out=tile_qm[:, : len(part_mF)])
            tile_qm[:, : len(scale_m)] *= scale_m
            tile_qm[:, len(scale_m) :] = -torch.inf
            similarity_qm = tile_qm[: stop - start]
            if leave_one_out:
                _hide_own(similarity_qm, own.start + start, first)
            _keep_largest(similarity_qm, first, keys_qK[start:stop])
            progress((first * num_own + len(scale_m) * stop) // len(bank), num_own)
    return keys_qK.cpu()


def _filled_up(part_nF: Tensor, rows: int) -> Tensor:
    """Pad with zeros to at least this many rows.

    Products of small or varying shapes are rounded in different ways at different positions. With products of one
    shape that is not too small, a similarity depends on its two images only: equal images have equal similarities, and
    the order does not matter.
    """
    missing = rows - len(part_nF)
    return torch.cat([part_nF, part_nF.new_zeros(missing, part_nF.shape[1])]) if missing > 0 else part_nF


def _hide_own(similarity_qm: Tensor, start: int, first: int) -> None:
    own = torch.arange(start, start + len(similarity_qm), device=similarity_qm.device)
    here = (own >= first) & (own < first + similarity_qm.shape[1])
    similarity_qm[own[here] - start, own[here] - first] = -torch.inf


def _keep_largest(similarity_qm: Tensor, first: int, keys_qK: Tensor) -> None:
    """Let the similarities to images `first` … of the bank compete with the largest so far."""
    for rows in _slices(len(keys_qK), _SELECT_AT_A_TIME):
        found, columns = _largest(similarity_qm[rows], keys_qK.shape[1])
        rivals = torch.cat([keys_qK[rows], _key(found, columns + first)], dim=1)
        keys_qK[rows] = rivals.topk(keys_qK.shape[1], dim=1).values


def _largest(similarity_qm: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and columns, in any order, that include the k largest of every row and all equals of the k-th.

    Columns j, j + G, j + 2G … are a group. Let t be the k-th largest of the groups' maxima. At least k entries are t or
    more, so the k largest of the row are too, and they lie in groups whose maximum is t or more. There are k such
    groups, or more if maxima are equal. One cheap pass (the maxima) therefore leaves 16 k entries to choose from.
    """
    num_rows, width = similarity_qm.shape
    num_groups = width // _GROUP
    if num_groups <= k:
        return similarity_qm, torch.arange(width, device=similarity_qm.device).expand(num_rows, -1)
    maxima_qG = similarity_qm.view(num_rows, _GROUP, num_groups).amax(dim=1)
    top = maxima_qG.topk(k, dim=1)
    needed = int((maxima_qG >= top.values[:, -1:]).sum(dim=1).max())
    if needed > k:
        top = maxima_qG.topk(needed, dim=1)
    members = torch.arange(_GROUP, device=similarity_qm.device)[:, None] * num_groups
    columns = (top.indices[:, None, :] + members).flatten(1)
    return similarity_qm.gather(1, columns), columns


def _key(similarity: Tensor, index: Tensor) -> Tensor:
    """Return numbers ordered by similarity and then by descending index; both can be recovered from them."""
    bits = (similarity + 0.0).view(torch.int32)  # −0 becomes 0: they are equal
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return (rank << 32) + (_LAST - index)


def _read_key(keys: Tensor) -> tuple[Tensor, Tensor]:
    rank = (keys >> 32).int()
    similarity = (rank ^ ((rank >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return similarity, _LAST - (keys & _LAST)


@dataclass(frozen=True)
class _Votes:
    """The nearest images of this process's queries, and the counting of their votes."""

    keys_qK: Tensor
    norms: Features
    labels: Labels
    ks: list[int]
    temperature: float
    num_classes: int

    def counted(self) -> Iterator[tuple[slice, int, Tensor]]:
        """Queries, the place of a k in `ks`, and the votes [q, C] for every class; the votes change with the next k.

        The votes of the nearest k are those of the nearest k′ < k plus a few more.
        """
        norms_q, labels_M = tensor(self.norms), tensor(self.labels)
        for rows in _slices(len(self.keys_qK), _QUERIES_AT_A_TIME):
            similarity_qK, index_qK = _read_key(self.keys_qK[rows])
            cosine_qK = similarity_qK.double() / norms_q[rows, None]
            # Relative to the nearest, so that nothing overflows
            votes_qK = torch.exp((cosine_qK - cosine_qK[:, :1]) / self.temperature)
            classes_qK = labels_M[index_qK]
            scores_qC = torch.zeros(len(votes_qK), self.num_classes, dtype=torch.float64)
            previous = 0
            for column, k in enumerate(self.ks):
                scores_qC.scatter_add_(1, classes_qK[:, previous:k], votes_qK[:, previous:k])
                yield rows, column, scores_qC
                previous = k


def _places(votes: _Votes, truth: Labels) -> dict[int, NDArray[np.int32]]:
    """For every k, how many classes rank before the true one, [Q]; gathered from all processes."""
    truth_q = tensor(truth)
    places_qk = torch.empty(len(truth_q), len(votes.ks), dtype=torch.int32)
    for rows, column, scores_qC in votes.counted():
        places_qk[rows, column] = _place(scores_qC, truth_q[rows]).int()
    return dict(zip(votes.ks, distributed.all_gather_rows(places_qk).T.numpy(), strict=True))


def _predicted(votes: _Votes) -> dict[str, Predicted]:
    """For every k, the class with the most votes and its share of them, for the queries of all processes."""
    shape = len(votes.keys_qK), len(votes.ks)
    classes_qk, shares_qk = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.float64)
    for rows, column, scores_qC in votes.counted():
        best = scores_qC.numpy().argmax(axis=1)  # the first of equal classes
        classes_qk[rows, column] = torch.from_numpy(best)
        shares_qk[rows, column] = scores_qC.amax(dim=1) / scores_qC.sum(dim=1)
    both = (distributed.all_gather_rows(part).T.numpy() for part in (classes_qk, shares_qk))
    return {f"@{k}": Predicted(*found) for k, *found in zip(votes.ks, *both, strict=True)}


def _place(scores_qC: Tensor, truth_q: Tensor) -> Tensor:
    """Return how many classes rank before the true one; all of them if it has no vote."""
    own_q1 = scores_qC.gather(1, truth_q[:, None])
    before = (scores_qC > own_q1).sum(dim=1)
    equal_qC = scores_qC == own_q1
    if int(equal_qC.sum()) > len(scores_qC):
        before += (equal_qC & (torch.arange(scores_qC.shape[1]) < truth_q[:, None])).sum(dim=1)
    return torch.where(own_q1[:, 0] > 0, before, scores_qC.shape[1])


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, length, step))
