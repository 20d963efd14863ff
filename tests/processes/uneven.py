"""Shares of different sizes, down to one image or none: `python -m tests.processes.uneven NAME FOLDER`.

What one process gives is computed first; 2, 3 and 5 processes must give the same. The numbers of images are such that
the processes would choose chunks of different sizes in the head's pass if each looked at its own share only.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import carp
from carp import distributed
from carp.model.carp import Embedded
from carp.model.head import blocks_per_chunk
from carp.model.loss import carp_loss
from carp.model.shared_loss import sharded_loss, shared_loss
from tests.helpers import tiny_images
from tests.processes.conftest import NO_BATCH_NORM, distance, losses
from tests.processes.forked import in_processes
from tests.processes.runs import without_batch_norm

UNEVEN = {2: 205, 3: 205, 5: 203}  # processes: images
K, N = 30 * 512, 512
TRAINING = {
    "epochs": 1,
    "global_size": 16,
    "blur": [0, 0, 0],
    "seed": 3,
    "projector_hidden": 32,
    "embedding": 16,
    "num_prototypes": K,
    "block_size": N,
    "device": "cpu",
    "log_steps": 1,
    "health_steps": 1,
    **NO_BATCH_NORM,
}
WAYS = {
    "replicated": {},
    "sharded": {"prototypes": "sharded", "prototype_shards": 30, "exchange_steps": 2},
    "micro-batches": {"micro_batch": 23},
    "sharded micro-batches": {
        "prototypes": "sharded",
        "prototype_shards": 30,
        "exchange_steps": 2,
        "micro_batch": 23,
    },
}


def loss_of_uneven_shares() -> None:
    """Loss and gradients, with the sizes of the paper's setting; micro-batches divide a share once more."""
    world = distributed.world_size()
    chunks = set()
    for images in (UNEVEN[world], world, world + 1):
        torch.manual_seed(images)
        z = (3 * torch.randn(2, images, 8, dtype=torch.float64)).requires_grad_()
        w = 3 * torch.randn(2, images, 8, dtype=torch.float64)
        prototypes, teacher = F.normalize(torch.randn(2, K, 8, dtype=torch.float64), dim=-1)
        prototypes.requires_grad_()
        partition = torch.randperm(K).view(-1, N)
        whole = carp_loss(z, w, prototypes, teacher, partition)
        expected = torch.autograd.grad(whole.total, [z, prototypes])
        own = slice(*distributed.share(images, distributed.rank()))
        chunks |= set(distributed.gather(blocks_per_chunk(4, own.stop - own.start, N)))
        embedded = Embedded(list(z[:, own]), list(w[:, own]), prototypes, teacher)
        terms = shared_loss(embedded, partition, images=images, entropy_weight=1.0)
        on_z, on_prototypes = torch.autograd.grad(terms.total, [z, prototypes])
        distributed.add_up([on_z, on_prototypes])
        for ours, theirs in zip([*terms, on_z, on_prototypes], [*whole, *expected], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
        blocks = slice(*distributed.share(len(partition), distributed.rank()))
        held = partition[blocks].flatten()
        shard = prototypes[held].detach().requires_grad_()
        embedded = Embedded(list(z[:, own]), list(w[:, own]), shard, teacher[held])
        local = torch.arange(len(held)).view(-1, N)
        terms = sharded_loss(embedded, local, images=images, entropy_weight=1.0)
        on_z, on_shard = torch.autograd.grad(terms.total, [z, shard])
        distributed.add_up([on_z])
        for ours, theirs in zip([*terms, on_z, on_shard], [*whole, expected[0], expected[1][held]], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
    assert len(chunks) > 3, "the shares would not have chosen different chunks"


def losses_of_all_worlds(_folder: Path) -> None:
    for world in UNEVEN:
        in_processes(world, loss_of_uneven_shares)
        print("passed:", world, flush=True)


def train(folder: Path, name: str, images: int, **settings: object) -> None:
    with without_batch_norm():  # then micro-batches change nothing at all
        data = tiny_images(3 * images, 16, seed=images)
        carp.train(data, folder / name, quiet=True, **{**TRAINING, "batch_size": images, **settings})


def runs(folder: Path) -> None:
    """Whole runs of three steps: health at every step, checkpoints, exchange of prototypes."""
    alone: dict[tuple[bool, int], Path] = {}
    for images in sorted(set(UNEVEN.values())):
        for sharded in (False, True):
            name = f"{images}-{sharded}"
            train(folder, name, images, **WAYS["sharded" if sharded else "replicated"])
            alone[sharded, images] = folder / name
    for world, images in UNEVEN.items():
        for way, settings in WAYS.items():
            name, one = f"{world}-{way}", alone["shard" in way, images]
            in_processes(world, partial(train, folder, name, images, **settings))
            np.testing.assert_allclose(losses(folder / name), losses(one), rtol=1e-5)
            assert len(losses(one)) == 3
            assert distance(folder / name, one) < 1e-5, (name, distance(folder / name, one))
            print("passed:", name, flush=True)


RUNS: dict[str, Callable[[Path], None]] = {"losses": losses_of_all_worlds, "runs": runs}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]))
