"""Prototypes in shards: which process holds which, how blocks are drawn inside them, and how they mix.

A shard is K / S consecutive prototypes. The number of shards is a setting; the number of processes that hold them is
not: one process that holds all shards computes the same as S processes with one shard each. Blocks are drawn inside
shards. Shards exchange some of their prototypes every `exchange_steps`, so that any two prototypes can meet. Rows move
together with their teacher and their moments, so that an exchange leaves no state behind.

Shapes: K prototypes, D embedding, P blocks, N prototypes in a block, M moving rows.
"""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from carp.compute import distributed
from carp.config import HeadSettings, OptimisationSettings
from carp.model.carp import Carp
from carp.model.partition import random_partition
from carp.random import Purpose, seed_of
from carp.training.health import Health

_PROTOTYPES = "assigner.directions_KD"


def own_shards(config: HeadSettings) -> range:
    """Return the shards that this process holds; none if every process holds all prototypes."""
    if config.shards == 1:
        return range(0)
    return range(*distributed.share(config.shards, distributed.rank()))


def partition_inside_shards(config: OptimisationSettings, step: int, number: int = 0) -> Tensor:
    """Draw the blocks of this process's shards, [P, N]; indices count from the first prototype that it holds.

    `number` is that of an independent micro-batch.
    """
    which = (number,) if number else ()
    size = config.num_prototypes // config.shards
    blocks = []
    for place, shard in enumerate(own_shards(config)):
        generator = torch.Generator().manual_seed(seed_of(config.seed, Purpose.PARTITION, step, shard, *which))
        blocks.append(random_partition(size, config.block_size, generator=generator) + place * size)
    return torch.cat(blocks)


def exchange(model: Carp, optimiser: Optimizer, config: OptimisationSettings, step: int) -> None:
    """After every `exchange_steps` steps, move prototypes between shards together with their teachers and moments."""
    if config.shards == 1 or config.partition == "fixed" or (step + 1) % config.exchange_steps:
        return
    places_M, origins_M = moves(config, step)
    own = model.student.assigner.directions_KD
    tensors = [own.data, *(t for t in optimiser.state[own].values() if isinstance(t, Tensor) and t.shape == own.shape)]
    if not model.siamese:
        tensors.append(model.teacher.assigner.directions_KD.data)
    for tensor in tensors:
        _move(tensor, places_M, origins_M)


def moves(config: OptimisationSettings, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which rows move at a step: those at `origins_M` go to `places_M`, a function of (seed, step) alone.

    Every shard gives random rows to the shard at a distance that changes from one exchange to the next.
    """
    shards, size = config.shards, config.num_prototypes // config.shards
    leaving = max(1, int(config.exchange_share * size))
    distance = 1 + ((step + 1) // config.exchange_steps) % (shards - 1)
    chosen = []
    for shard in range(shards):
        generator = np.random.Generator(np.random.Philox(seed_of(config.seed, Purpose.EXCHANGE, step, shard)))
        chosen.append(shard * size + np.sort(generator.choice(size, leaving, replace=False)))
    origins = [chosen[(shard - distance) % shards] for shard in range(shards)]
    return np.concatenate(chosen), np.concatenate(origins)


def _move(rows_KD: Tensor, places_M: NDArray[np.int64], origins_M: NDArray[np.int64]) -> None:
    """Move rows to their new places, in this process or in another. All processes hold equally many rows."""
    held, me, world = len(rows_KD), distributed.rank(), distributed.world_size()
    receiver_M, sender_M = places_M // held, origins_M // held
    sent, received = np.flatnonzero(sender_M == me), np.flatnonzero(receiver_M == me)
    sent = sent[np.argsort(receiver_M[sent], kind="stable")]
    received = received[np.argsort(sender_M[received], kind="stable")]
    leaving = rows_KD[torch.from_numpy(origins_M[sent] - me * held).to(rows_KD.device)]
    if world > 1:
        to_send, to_receive = (
            np.bincount(other, minlength=world).tolist() for other in (receiver_M[sent], sender_M[received])
        )
        leaving = distributed.exchange_rows(leaving, to_send, to_receive)
    rows_KD[torch.from_numpy(places_M[received] - me * held).to(rows_KD.device)] = leaving


def all_rows(tensors: dict[str, Tensor], config: HeadSettings) -> dict[str, Tensor]:
    """Gather the prototypes of all processes in the first, so that any number of processes can resume."""
    if config.shards == 1 or distributed.world_size() == 1:
        return tensors
    return {name: distributed.gather_rows(t.detach().cpu()) if _has_rows(name, t) else t for name, t in tensors.items()}


def own_rows(tensors: dict[str, Tensor], config: HeadSettings) -> dict[str, Tensor]:
    """Select this process's prototypes from those of a checkpoint, the reverse of `all_rows`."""
    if config.shards == 1 or distributed.world_size() == 1:
        return tensors
    own = slice(*distributed.share(config.num_prototypes, distributed.rank()))
    return {name: t[own].clone() if _has_rows(name, t) else t for name, t in tensors.items()}


def _has_rows(name: str, tensor: Tensor) -> bool:
    return _PROTOTYPES in name and tensor.ndim == 2


def mean_over_shards(health: Health) -> Health:
    """Average measurements over the shards; a process looks for duplicates only among its own prototypes."""
    names = ("prototypes_used", "duplicate_prototypes", "certainty", "entropy", "teacher_certainty", "teacher_entropy")
    own = {name: value for name in names if (value := getattr(health, name)) is not None}
    shares = torch.tensor(list(own.values()), dtype=torch.float64)
    distributed.all_reduce_sum([shares])
    means = cast(list[float], (shares / distributed.world_size()).tolist())
    changes: dict[str, Any] = dict(zip(own, means, strict=True))
    return replace(health, **changes)
