"""Several processes beside one: speed, bytes that travel, memory, and what a kill costs.

    python -m benchmarks.distributed [--quick] [--json] [--only speed bytes …]

Speed: a step of a ResNet-18 on 32 pixels, by two processes with a thread each and by one with two; they take turns, and
the best time of each counts. Kills: a run of two processes, one of which is killed after every start, ten times.

Bytes are those of the network devices (/proc/net/dev), in a network namespace where that is permitted; elsewhere
nothing else should talk over the network meanwhile.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import carp
from benchmarks.shared import CPU, Measure, Measures, measures_parser, print_measures
from carp.compute import distributed
from carp.config import resolve
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.model.assigner import Assigner
from carp.model.carp import Embedded
from carp.model.shared_loss import sharded_loss, shared_loss
from carp.runs import checkpoint
from carp.training.loop import build_model
from carp.training.optimiser import LARS, build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

BLOCK, DIMENSIONS = 512, 256
SPEED = {
    "epochs": 1,
    "batch_size": 128,
    "global_size": 32,
    "encoder": "resnet18",
    "num_prototypes": 4096,
    "block_size": 128,
    "device": "cpu",
}
TINY = {
    "epochs": 30,
    "batch_size": 16,
    "global_size": 32,
    "encoder": "resnet18",
    "encoder_options": {"channels": [8, 8, 16, 16]},
    "stem_stride": 4,
    "projector_hidden": 32,
    "embedding": 16,
    "num_prototypes": 64,
    "block_size": 8,
    "device": "cpu",
    "checkpoint_steps": 3,
    "sync_batch_norm": False,
}
KILLS = 10
KINDS = ("replicated", "sharded")


def images(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Coloured noise."""
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


# Inside the processes that torchrun starts


def serve_speed() -> None:
    """A step for every line on the first process's standard input; answers with its seconds."""
    config = resolve(SPEED, num_images=4096)
    distributed.start(CPU, timeout=timedelta(minutes=30))
    model = build_model(config, CPU).train()
    loader = make_loader(ArraySource(images(4096)), config)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 32), config, CPU)
    for batch in loader.batches(0, 32):
        more = bool(sys.stdin.readline()) if distributed.is_first() else False
        if not distributed.all_reduce_max([more])[0]:
            break
        start = time.perf_counter()
        stepper(batch)
        distributed.barrier()
        if distributed.is_first():
            print(json.dumps(time.perf_counter() - start), flush=True)


def measure_bytes(kind: str, prototypes: int, batch: int) -> None:
    """Bytes of one step of the head alone: what the loss sends, and the gradients of the prototypes."""
    distributed.start(CPU, timeout=timedelta(minutes=30))
    world, rank = distributed.world_size(), distributed.rank()
    first, last = distributed.share(batch, rank)
    held = prototypes // world if kind == "sharded" else prototypes
    z = [torch.randn(last - first, DIMENSIONS).requires_grad_() for _ in range(2)]
    w = [torch.randn(last - first, DIMENSIONS) for _ in range(2)]
    own = F.normalize(torch.randn(held, DIMENSIONS), dim=-1).requires_grad_()
    partition = carp.random_partition(held, BLOCK, generator=torch.Generator().manual_seed(0))
    loss = sharded_loss if kind == "sharded" else shared_loss
    distributed.barrier()
    time.sleep(0.5)
    before = _bytes_sent()
    distributed.barrier()
    loss(Embedded(z, w, own, own.detach()), partition, images=batch, entropy_weight=1.0).total.backward()  # type: ignore[no-untyped-call]
    if kind != "sharded":
        assert own.grad is not None
        distributed.all_reduce_sum([own.grad])
    distributed.barrier()
    time.sleep(0.5)
    if distributed.is_first():
        print(json.dumps((_bytes_sent() - before) / world), flush=True)
    distributed.barrier()


def _bytes_sent() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines)


def computed_bytes(kind: str, prototypes: int, batch: int, world: int) -> float:
    """The same from formulas: what a process sends at a step, two views, float32."""
    others = (world - 1) / world
    if kind == "sharded":  # embeddings of both branches to all, gradients of the student's back
        return 4 * DIMENSIONS * batch * others * (4 + 2)
    return 4 * prototypes * (DIMENSIONS + 1) * 2 * others  # a ring: twice all but the own part


def measure_memory(kind: str, prototypes: int) -> None:
    """Bytes of what a process holds of the head: prototypes, their teacher, gradient and momentum."""
    held = prototypes // distributed.world_size() if kind == "sharded" else prototypes
    before = _resident()
    student, teacher = Assigner(held, DIMENSIONS), Assigner(held, DIMENSIONS)
    student.directions_KD.grad = torch.ones_like(student.directions_KD)
    optimiser = LARS(student.parameters(), lr=0.1)
    optimiser.step()
    if distributed.is_first():
        print(json.dumps(_resident() - before), flush=True)
    del teacher


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train_through_kills(folder: str, kills: int) -> None:
    """Train; the last process is killed a few steps after every start, `kills` times."""
    attempt, steps = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), 0
    real = Stepper.__call__

    def call(self: Stepper, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if attempt < kills and steps == 4 + attempt % 3 and distributed.rank() == distributed.world_size() - 1:
            with Path(f"{folder}.kills").open("a") as file:
                file.write(".")  # proof that it happened
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **kwargs)

    Stepper.__call__ = call  # type: ignore[method-assign]
    carp.train(images(64), folder, Path(folder).with_name("tiny.yaml"), quiet=True)


# Outside


def torchrun(processes: int, *words: object, restarts: int = 0, threads: int = 1, **options: Any) -> Any:
    """Start this file in several processes."""
    command = [
        *quiet_network(),
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    command += [f"--max-restarts={restarts}", "-m", "benchmarks.distributed", "--inside", *map(str, words)]
    # In a network namespace torch warns that it cannot find a name for the address
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, **options)


@cache
def quiet_network() -> tuple[str, ...]:
    """The words that run a command where nobody else is on the network, if that is permitted."""
    words = ("unshare", "--map-root-user", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "-")
    try:
        return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else ()
    except OSError:
        return ()


def answer(processes: int, *words: object) -> float:
    """The number that it prints."""
    output, _ = torchrun(processes, *words).communicate()
    return float(json.loads(output.strip().splitlines()[-1]))


def measure_speed(quick: bool, rounds: int) -> Measures:
    """Images/s of two processes with one thread each, relative to one process with two; they take turns."""
    servers = {n: torchrun(n, "speed", threads=2 // n, stdin=subprocess.PIPE) for n in (1, 2)}
    best = dict.fromkeys(servers, float("inf"))
    for turn in range((min(3, rounds) if quick else rounds) + 1):
        for n, server in servers.items():
            server.stdin.write("\n")
            server.stdin.flush()
            seconds = float(json.loads(server.stdout.readline()))
            if turn:  # the first step sets things up
                best[n] = min(best[n], seconds)
    for server in servers.values():
        server.communicate()
    batch = int(str(SPEED["batch_size"]))
    return {
        "images/s, one process of two threads": (batch / best[1], None, True),
        "images/s, two processes of one thread": (batch / best[2], None, True),
        "images/s, two processes ÷ one": (best[1] / best[2], 0.95, True),
    }


def measure_head_bytes(quick: bool, _rounds: int) -> Measures:
    """MB that a process sends at a step for the head, measured and by formula."""
    prototypes, batch = (65_536, 256) if quick else (262_144, 1024)
    found = {kind: answer(2, "bytes", kind, prototypes, batch) for kind in KINDS}
    rows: Measures = {}
    for kind, sent in found.items():
        formula, what = computed_bytes(kind, prototypes, batch, 2), f"{kind}, K = {prototypes:,}, batch {batch}"
        rows[f"MB sent a step and process, {what}"] = (sent / 1e6, None, False)
        rows[f"bytes, measured ÷ formula ({formula / 1e6:.2f} MB), {kind}"] = (sent / formula, 1.05, False)
    rows["bytes of the head, sharded ÷ replicated"] = (found["sharded"] / found["replicated"], 0.1, False)
    return rows


def measure_head_memory(quick: bool, _rounds: int) -> Measures:
    """MB that a process holds of prototypes, teacher, gradient and momentum, measured and by formula."""
    prototypes = 65_536 if quick else 262_144
    found = {kind: answer(2, "memory", kind, prototypes) for kind in KINDS}
    rows: Measures = {}
    for kind, size in found.items():
        formula = 4 * 4 * DIMENSIONS * (prototypes // 2 if kind == "sharded" else prototypes)
        rows[f"MB of the head, {kind}, K = {prototypes:,}"] = (size / 1e6, None, False)
        rows[f"memory, measured ÷ formula ({formula / 1e6:.1f} MB), {kind}"] = (size / formula, 1.1, False)
    rows["memory of the head, sharded ÷ replicated"] = (found["sharded"] / found["replicated"], 0.55, False)
    return rows


def measure_kills(quick: bool, _rounds: int) -> Measures:
    """How many kills a run survived with the final weights of a run that nobody killed."""
    kills = 2 if quick else KILLS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.yaml").write_text(json.dumps(TINY))
        for out, number in (("calm", 0), ("killed", kills)):
            process = torchrun(2, "kills", folder / out, number, restarts=kills, stderr=subprocess.DEVNULL)
            process.communicate()
            if process.returncode:
                return {f"kills survived of {kills}": (0.0, float(kills), True)}
        calm, killed = (checkpoint.load_newest(folder / out / "checkpoints")[0] for out in ("calm", "killed"))
        happened = len((folder / "killed.kills").read_text())
    assert calm is not None
    assert killed is not None
    same = calm.step == killed.step and all(torch.equal(t, killed.tensors[key]) for key, t in calm.tensors.items())
    return {f"kills survived of {kills}": (float(happened if same else 0), float(kills), True)}


INSIDE: dict[str, Callable[..., None]] = {
    "speed": serve_speed,
    "bytes": measure_bytes,
    "memory": measure_memory,
    "kills": train_through_kills,
}
MEASURES: dict[str, Measure] = {
    "speed": measure_speed,
    "bytes": measure_head_bytes,
    "memory": measure_head_memory,
    "kills": measure_kills,
}


def main() -> None:
    """Parse the command line."""
    parser = measures_parser(__doc__, MEASURES, rounds=10)
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        name, *words = arguments.inside
        INSIDE[name](*(int(word) if word.isdigit() else word for word in words))
    else:
        print_measures(MEASURES, arguments)


if __name__ == "__main__":
    main()
