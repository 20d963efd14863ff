"""Shares of different sizes, down to one image or none: `python -m tests.processes.uneven NAME FOLDER`.

What one process gives is computed first; 2, 3 and 5 processes must give the same. The numbers of images are such that
the processes would choose chunks of different sizes in the head's pass if each looked at its own share only.
"""

import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch.nn import functional as F

import carp
from carp.compute import distributed
from carp.model.carp import Embedded
from carp.model.head import Uniformity, blocks_per_chunk
from carp.model.loss import carp_loss
from carp.model.shared_loss import sharded_loss, shared_loss
from carp.runs.metrics_log import read_metrics
from tests.helpers import TINY, tiny_images, write_images
from tests.processes.conftest import NO_BATCH_NORM, distance, losses
from tests.processes.forked import in_processes
from tests.processes.runs import without_batch_norm

UNEVEN = {2: 205, 3: 205, 5: 203}  # processes: images
K, N = 30 * 512, 512
TRAINING = {
    "epochs": 1,
    "global_size": 32,
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
    for images, uniformity in itertools.product((UNEVEN[world], world, world + 1), get_args(Uniformity)):
        torch.manual_seed(images)
        z = (3 * torch.randn(2, images, 8, dtype=torch.float64)).requires_grad_()
        w = 3 * torch.randn(2, images, 8, dtype=torch.float64)
        prototypes, teacher = F.normalize(torch.randn(2, K, 8, dtype=torch.float64), dim=-1)
        prototypes.requires_grad_()
        partition = torch.randperm(K).view(-1, N)
        koleo: dict[str, Any] = {"koleo_weight": 0.5, "koleo_distance": 0.3}
        whole = carp_loss(z, w, prototypes, teacher, partition, uniformity=uniformity, **koleo)
        expected = torch.autograd.grad(whole.total, [z, prototypes])
        own = slice(*distributed.share(images, distributed.rank()))
        chunks |= set(distributed.gather(blocks_per_chunk(4, own.stop - own.start, N)))
        embedded = Embedded(list(z[:, own]), list(w[:, own]), prototypes, teacher)
        options: dict[str, Any] = {"entropy_weight": 1.0, "uniformity": uniformity, **koleo}
        terms = shared_loss(embedded, partition, images=images, **options)
        on_z, on_prototypes = torch.autograd.grad(terms.total, [z, prototypes])
        distributed.all_reduce_sum([on_z, on_prototypes])
        for ours, theirs in zip([*terms, on_z, on_prototypes], [*whole, *expected], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
        blocks = slice(*distributed.share(len(partition), distributed.rank()))
        held = partition[blocks].flatten()
        shard = prototypes[held].detach().requires_grad_()
        embedded = Embedded(list(z[:, own]), list(w[:, own]), shard, teacher[held])
        local = torch.arange(len(held)).view(-1, N)
        terms = sharded_loss(embedded, local, images=images, **options)
        on_z, on_shard = torch.autograd.grad(terms.total, [z, shard])
        distributed.all_reduce_sum([on_z])
        for ours, theirs in zip([*terms, on_z, on_shard], [*whole, expected[0], expected[1][held]], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
    assert len(chunks) > 3, "the shares would not have chosen different chunks"


def losses_of_all_worlds(_folder: Path) -> None:
    for world in UNEVEN:
        in_processes(world, loss_of_uneven_shares)
        print("passed:", world, flush=True)


def train(folder: Path, name: str, images: int, **settings: object) -> None:
    with without_batch_norm():  # then micro-batches change nothing at all
        data = tiny_images(3 * images, seed=images)
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


def tiny_shares(folder: Path) -> None:
    """Photographs by worker processes, batch norm everywhere: 6 images on 5 processes; 5 on 5, one of them bad."""
    photos = np.repeat(np.repeat(tiny_images(17, 20), 4, axis=1), 4, axis=2)
    write_images(folder / "photos", photos)
    (folder / "photos" / "003.png").write_bytes(b"no image")
    for batch_size in (6, 5):
        settings = {
            **{key: value for key, value in TINY.items() if key not in {"blur", "encoder_options"}},
            "encoder_options": {"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4},
            "global_size": 72,
            "workers": 1,
            "epochs": 1,
            "batch_size": batch_size,
            "micro_batch": "auto",
            "max_bad_share": 0.1,
            "lr": 0.1,
        }
        train = partial(carp.train, folder / "photos", quiet=True, **settings)
        train(folder / f"one-{batch_size}")
        in_processes(5, partial(train, folder / f"five-{batch_size}"))
        one, five = (folder / f"{name}-{batch_size}" for name in ("one", "five"))
        np.testing.assert_allclose(losses(five), losses(one), rtol=1e-5)
        assert len(losses(one)) == 17 // batch_size
        assert distance(five, one) < 1e-5, distance(five, one)
        bad = [(run / "quarantine.jsonl").read_text() for run in (one, five)]
        assert bad[0] == bad[1]
        assert "003.png" in bad[0]
        print("passed:", batch_size, "images", flush=True)


def validation(folder: Path) -> None:
    """Fewer readable images than processes in a share: the last of three shares of 21 has none."""
    rng = np.random.default_rng(0)
    images = rng.normal(128, 20, (63, 32, 32, 3)) + rng.normal(0, 20, (7, 1, 1, 3))[np.arange(63) % 7]
    write_images(folder / "labelled", np.clip(images, 0, 255).astype(np.uint8), classes=7)
    for path in sorted((folder / "labelled").rglob("*.png"))[-21:]:
        path.write_bytes(b"no image")
    settings = {**TINY, "epochs": 1, "validation": str(folder / "labelled")}
    train = partial(carp.train, tiny_images(), quiet=True, **settings)
    train(folder / "one")
    in_processes(3, partial(train, folder / "three"))
    one, three = (
        [line for line in read_metrics(folder / run / "metrics.jsonl") if "knn_student" in line]
        for run in ("one", "three")
    )
    assert one == three
    assert 0 < one[0]["knn_student"] < 1, "nothing is compared"
    print("passed: validation", flush=True)


def evaluation(folder: Path) -> None:
    """3 batches of images and one classifier for 5 processes; the last step of an epoch has fewer images than these."""
    carp.train(tiny_images(), folder / "run", quiet=True, **{**TINY, "epochs": 1})
    rng = np.random.default_rng(1)
    images = rng.normal(128, 30, (36, 32, 32, 3)) + rng.normal(0, 20, (3, 1, 1, 3))[np.arange(36) % 3]
    write_images(folder / "labelled", np.clip(images, 0, 255).astype(np.uint8), classes=3)

    def evaluate(name: str) -> None:
        model, data, out = folder / "run", folder / "labelled", folder / name
        carp.embed(model, data, out / "embedded", batch_size=13, device="cpu", quiet=True)
        linear: dict[str, Any] = {"epochs": 3, "batch_size": 17, "lrs": 10, "optimisers": "sgd", "weight_decays": 0}
        found = [carp.evaluate("knn", model, data, test=data, k=3, out=out, device="cpu", quiet=True).values]
        for cached in (False, True):
            result = carp.evaluate(
                "linear", model, data, test=data, out=out, device="cpu", quiet=True, cached=cached, **linear
            )
            found.append(result.values)
        assert all(other == found for other in distributed.gather(found))
        if distributed.is_first():
            (out / "found.json").write_text(json.dumps(found))

    evaluate("one")
    in_processes(5, partial(evaluate, "five"))
    one, five = (json.loads((folder / name / "found.json").read_text()) for name in ("one", "five"))
    assert one == five
    assert 0.3 < one[0]["top1@3"] <= 1
    for name in ("features.npy", "labels.npy", "places.jsonl"):
        ours, theirs = ((folder / run / "embedded" / name).read_bytes() for run in ("five", "one"))
        assert ours == theirs, name
    print("passed: evaluation", flush=True)


RUNS: dict[str, Callable[[Path], None]] = {
    "losses": losses_of_all_worlds,
    "runs": runs,
    "tiny_shares": tiny_shares,
    "validation": validation,
    "evaluation": evaluation,
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]))
