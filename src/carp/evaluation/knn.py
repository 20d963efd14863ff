"""Weighted k-nearest-neighbour classification, as in the paper's appendix.

The similarity is the cosine; each of the k nearest images of the bank votes for its class with exp(similarity / τ).

Shapes: Q queries, M images in the bank, F features, k neighbours, C classes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from carp.errors import DataError

Labels = NDArray[np.int64]
_QUERIES_AT_A_TIME = 1024


def knn_accuracy(
    bank: NDArray[np.float32],
    bank_labels: Labels,
    queries: NDArray[np.float32],
    query_labels: Labels,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Share of queries [Q, F] whose class wins the vote of their k nearest in the bank [M, F]."""
    return _accuracy(bank, bank_labels, queries, query_labels, k, temperature, leave_one_out=False)


def knn_leave_one_out(
    features: NDArray[np.float32], labels: Labels, *, k: int = 20, temperature: float = 0.07
) -> float:
    """The same with every image a query against all others."""
    return _accuracy(features, labels, features, labels, k, temperature, leave_one_out=True)


def check_neighbours(k: int, num_images: int, *, leave_one_out: bool) -> None:
    """Raise unless a bank of so many images has k neighbours for every query."""
    if k < 1:
        raise DataError(f"k must be at least 1, received {k}.")
    if num_images < k + leave_one_out:
        raise DataError(
            f"k-NN with k = {k} needs at least {k + leave_one_out} images in the bank, received {num_images}. "
            "Lower k or add images."
        )


def _accuracy(
    bank: NDArray[np.float32],
    bank_labels: Labels,
    queries: NDArray[np.float32],
    query_labels: Labels,
    k: int,
    temperature: float,
    *,
    leave_one_out: bool,
) -> float:
    check_neighbours(k, len(bank), leave_one_out=leave_one_out)
    _check(bank, bank_labels, queries, query_labels, temperature)
    bank_MF = F.normalize(torch.from_numpy(bank), dim=-1)
    queries_QF = F.normalize(torch.from_numpy(queries), dim=-1)
    labels_M = torch.tensor(bank_labels)
    num_classes = int(max(bank_labels.max(), query_labels.max())) + 1
    right = 0
    for start in range(0, len(queries_QF), _QUERIES_AT_A_TIME):
        similarity_qM = queries_QF[start : start + _QUERIES_AT_A_TIME] @ bank_MF.T
        if leave_one_out:
            own = torch.arange(len(similarity_qM))
            similarity_qM[own, own + start] = -torch.inf
        predicted = _vote(similarity_qM, labels_M, k, temperature, num_classes)
        right += int((predicted.numpy() == query_labels[start : start + len(predicted)]).sum())
    return right / len(queries)


def _vote(similarity_qM: Tensor, labels_M: Tensor, k: int, temperature: float, num_classes: int) -> Tensor:
    nearest_qk = similarity_qM.topk(k, dim=1)
    votes_qk = torch.exp(nearest_qk.values / temperature)
    scores_qC = torch.zeros(len(similarity_qM), num_classes)
    scores_qC.scatter_add_(1, labels_M[nearest_qk.indices], votes_qk)
    return scores_qC.argmax(dim=1)


def _check(
    bank: NDArray[np.float32],
    bank_labels: Labels,
    queries: NDArray[np.float32],
    query_labels: Labels,
    temperature: float,
) -> None:
    if not len(queries):
        raise DataError("k-NN needs at least one query, received none.")
    if bank.shape[1] != queries.shape[1]:
        raise DataError(
            f"bank and queries must have features of one length, received {bank.shape[1]} and {queries.shape[1]}."
        )
    if len(bank) != len(bank_labels) or len(queries) != len(query_labels):
        raise DataError("k-NN needs a label for every image.")
    if temperature <= 0:
        raise DataError(f"temperature must be greater than 0, received {temperature}.")
    if not (np.isfinite(bank).all() and np.isfinite(queries).all()):
        raise DataError("some features are not finite numbers; k-NN on them would mean nothing.")
