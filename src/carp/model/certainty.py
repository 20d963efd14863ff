"""How certain assignments are: without a temperature, the loss itself determines how sharp they become.

Shapes: M embeddings, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_PROTOTYPES_AT_A_TIME = 8192


class Certainty(NamedTuple):
    """Means over embeddings and blocks."""

    largest: float
    """Mean of the largest assignment in a block: 1 / N if assignments are uniform, 1 if they are certain."""
    entropy: float
    """Mean entropy of an assignment relative to its limit ln N: 1 if uniform, 0 if certain."""


@torch.no_grad()
def certainty(x_MD: Tensor, prototypes_KD: Tensor, partition_PN: Tensor) -> Certainty:
    """Measure how certain the assignments of embeddings are, a few blocks at a time.

    A block of one prototype has two outcomes: an image belongs to it or not.
    """
    N = partition_PN.shape[1]
    sums = torch.zeros(2, device=x_MD.device)
    for blocks_pN in torch.split(partition_PN, max(1, _PROTOTYPES_AT_A_TIME // N)):
        logits_MpN = (x_MD.float() @ prototypes_KD[blocks_pN.flatten()].T).view(len(x_MD), -1, N)
        logs_MpN = (F.pad(logits_MpN, (0, 1)) if N == 1 else logits_MpN).log_softmax(dim=-1)
        sums += torch.stack([logs_MpN.amax(dim=-1).exp().sum(), -(logs_MpN.exp() * logs_MpN).sum()])
    largest, entropy = (sums / (len(x_MD) * len(partition_PN))).tolist()
    return Certainty(largest, entropy / math.log(max(2, N)))
