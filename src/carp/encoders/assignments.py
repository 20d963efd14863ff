"""Assignments of images to prototypes, as a training step computes them: within the blocks of random partitions.

Shapes: M images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.config import HeadSettings
from carp.model.partition import fixed_partition, random_partition
from carp.random import Purpose, seed_of

_LOGITS_AT_A_TIME = 2**24
Floats = NDArray[np.float32]


def partitions(config: HeadSettings, seed: int, count: int) -> list[Tensor]:
    """Return the partitions [P, N] of the first steps of a run; a fixed one only once."""
    K, N = config.num_prototypes, config.block_size
    if config.partition == "fixed":
        return [fixed_partition(K, N)]
    generators = [torch.Generator().manual_seed(seed_of(seed, Purpose.PARTITION, step)) for step in range(count)]
    return [random_partition(K, N, generator=generator) for generator in generators]


def preferred_shares(embeddings_MD: Floats, prototypes_KD: Floats, parts: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return for every prototype the share of images that prefer it in its block, averaged over partitions, [K].

    It is 1 / N if the prototypes of a block are used evenly. A block of one prototype has two outcomes: an image
    prefers the prototype if its logit is positive.
    """
    x_MD, prototypes = torch.from_numpy(embeddings_MD), torch.from_numpy(prototypes_KD)
    votes_K = torch.zeros(len(prototypes), dtype=torch.int64)
    for some_MD in torch.split(x_MD, max(1, _LOGITS_AT_A_TIME // len(prototypes))):
        logits_MK = some_MD @ prototypes.T
        for partition_PN in parts:
            if partition_PN.shape[1] == 1:
                votes_K += (logits_MK > 0).sum(dim=0)
                continue
            best_MP = logits_MK[:, partition_PN].argmax(dim=-1)
            chosen_MP = partition_PN.T.gather(0, best_MP)
            votes_K += torch.bincount(chosen_MP.flatten(), minlength=len(prototypes))
    shares: NDArray[np.float64] = votes_K.double().numpy() / (len(x_MD) * len(parts))
    return shares


def assign(embeddings_MD: Floats, prototypes_KD: Floats, block_N: Tensor) -> Floats:
    """Return the assignments of images to the prototypes of one block, [M, N]."""
    logits_MN = torch.from_numpy(embeddings_MD) @ torch.from_numpy(prototypes_KD)[block_N].T
    assigned: Floats = (logits_MN.sigmoid() if len(block_N) == 1 else logits_MN.softmax(dim=-1)).numpy()
    return assigned
