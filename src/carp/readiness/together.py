"""What several processes check together: `python -m carp.readiness.together FOLDER DEVICE`, once per process.

Every process writes `report-RANK.json` into the folder. Then the last one kills itself, and the others write
`lost-RANK.json` when they notice.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from carp.compute import distributed
from carp.compute.device import choose_device, has_float64
from carp.config import resolve
from carp.errors import ProcessError
from carp.files.atomic import write_atomic
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.model.carp import Embedded
from carp.model.loss import carp_loss
from carp.model.shared_loss import sharded_loss, shared_loss
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

SIZES = (2**16, 2**22, 2**26)  # bytes that are summed over all processes
_TIMEOUT = timedelta(seconds=60)
_STEPS, _REPEATS = 3, 3
_SMALL = {
    "epochs": 1,
    "seed": 3,
    "global_size": 32,
    "blur": [0, 0, 0],
    "encoder": "resnet18",
    "encoder_options": {"channels": [8, 8, 16, 16], "stem_type": "deep", "stem_width": 4},
    "stem_stride": 2,
    "projector_hidden": 32,
    "embedding": 16,
    "num_prototypes": 64,
    "block_size": 8,
}


def loss_curve(device: torch.device, images: int) -> list[float]:
    """Return loss and gradient norm of some steps of a small network with batch norm; each process has its share."""
    config = resolve({**_SMALL, "batch_size": images, "device": str(device)}, num_images=_STEPS * images)
    generator = np.random.Generator(np.random.Philox(1))
    pixels = generator.integers(0, 256, (_STEPS * images, 32, 32, 3), dtype=np.uint8)
    loader = make_loader(ArraySource(pixels), config)
    model = build_model(config, device).train()
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, _STEPS), config, device)
    results = [stepper(batch) for batch in loader.batches(0, _STEPS)]
    return [number for result in results for number in (result.loss, result.gradient_norm)]


def uneven_difference(device: torch.device) -> float:
    """Return how far loss and gradients of uneven shares, down to one image, are from those of the whole batch."""
    world, D, N = distributed.world_size(), 8, 4
    dtype = torch.float64 if has_float64(device) else torch.float32
    K, worst = 2 * world * N, 0.0
    for images in (world, 2 * world + 1):
        generator = torch.Generator().manual_seed(images)
        z, w = (3 * torch.randn(2, images, D, generator=generator, dtype=dtype).to(device) for _ in range(2))
        prototypes, teacher = (
            F.normalize(torch.randn(K, D, generator=generator, dtype=dtype), dim=-1).to(device) for _ in range(2)
        )
        z, prototypes = z.requires_grad_(), prototypes.requires_grad_()
        partition = torch.randperm(K, generator=generator).view(-1, N).to(device)
        whole = carp_loss(z, w, prototypes, teacher, partition)
        expected = torch.autograd.grad(whole.total, [z, prototypes])
        own = distributed.own_share(images)
        z_own, w_own = list(z[:, own]), list(w[:, own])

        terms = shared_loss(Embedded(z_own, w_own, prototypes, teacher), partition, images=images, entropy_weight=1.0)
        on_z, on_prototypes = torch.autograd.grad(terms.total, [z, prototypes], retain_graph=True)
        distributed.all_reduce_sum([on_z, on_prototypes])
        pairs = [(terms.total, whole.total), (on_z, expected[0]), (on_prototypes, expected[1])]

        held = partition[distributed.own_share(len(partition))].flatten()
        shard = prototypes[held].detach().requires_grad_()
        local = torch.arange(len(held), device=device).view(-1, N)
        terms = sharded_loss(Embedded(z_own, w_own, shard, teacher[held]), local, images=images, entropy_weight=1.0)
        on_z, on_shard = torch.autograd.grad(terms.total, [z, shard])
        distributed.all_reduce_sum([on_z])
        pairs += [(terms.total, whole.total), (on_z, expected[0]), (on_shard, expected[1][held])]
        worst = max(worst, *(float((a - b).norm() / b.norm()) for a, b in pairs))
    return worst


def seconds_to_sum(device: torch.device) -> list[float]:
    """Return the shortest time to sum each of the sizes over all processes."""
    found = []
    for size in SIZES:
        numbers = torch.ones(size // 4, device=device)
        times = []
        for _ in range(1 + _REPEATS):  # the first one connects the processes
            distributed.barrier()
            start = time.perf_counter()
            distributed.all_reduce_sum([numbers])
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
        found.append(min(times[1:]))
    return found


def _lose_the_last(device: torch.device) -> str:
    """Kill the last process, and return the message that the others get when they wait for it."""
    distributed.barrier()
    if distributed.rank() == distributed.world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    numbers = torch.ones(1, device=device)
    try:
        for _ in range(1000):  # one that has begun may still succeed
            distributed.all_reduce_sum([numbers])
            numbers.tolist()
            time.sleep(0.01)
    except ProcessError as error:
        return str(error)
    return ""


def main(folder: Path, name: str) -> None:
    """Check everything in one of the processes."""
    device = choose_device(name)
    distributed.start(device, timeout=_TIMEOUT)
    rank, world = distributed.rank(), distributed.world_size()
    report = {
        "losses": loss_curve(device, 2 * world + 1),
        "uneven": uneven_difference(device),
        "seconds": seconds_to_sum(device),
    }
    write_atomic(folder / f"report-{rank}.json", json.dumps(report))
    write_atomic(folder / f"lost-{rank}.json", json.dumps(_lose_the_last(device)))
    sys.stdout.flush()
    os._exit(0)  # the group cannot be closed without the lost process


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
