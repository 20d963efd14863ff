"""Several processes beside one: speed, bytes that travel, memory, and what a kill costs.

    python -m benchmarks.distributed            # tables
    python -m benchmarks.distributed --json     # the same, and a last line of JSON with the targets

Bytes are those of the network devices of this machine (/proc/net/dev), where all processes run, so nothing else should
talk over the network meanwhile. Where network namespaces are permitted, `unshare -rn` gives one that is quiet.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import carp
from benchmarks.shared import CPU, judged
from carp import checkpoint, distributed
from carp.config import resolve
from carp.data.loader import make_loader
from carp.data.source import ArraySource
from carp.model.assigner import Assigner
from carp.model.carp import Embedded
from carp.model.shared_loss import sharded_loss, shared_loss
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
        if not distributed.largest([more])[0]:
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
        distributed.add_up([own.grad])
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
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **kwargs)

    Stepper.__call__ = call  # type: ignore[method-assign]
    carp.train(images(64), folder, Path(folder).with_name("tiny.yaml"), quiet=True)


# Outside


def torchrun(processes: int, *words: object, restarts: int = 0, threads: int = 1, **options: Any) -> Any:
    """Start this file in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [f"--max-restarts={restarts}", "-m", "benchmarks.distributed", "--inside", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, **options)


def answer(processes: int, *words: object) -> float:
    """The number that it prints."""
    output, _ = torchrun(processes, *words).communicate()
    return float(json.loads(output.strip().splitlines()[-1]))


def compare_speed(rounds: int) -> float:
    """Images/s of two processes with one thread each, relative to one process with two; they take turns."""
    servers = {n: torchrun(n, "speed", threads=2 // n, stdin=subprocess.PIPE) for n in (1, 2)}
    best: dict[int, float] = {}
    for turn in range(rounds + 1):
        for n, server in servers.items():
            server.stdin.write("\n")
            server.stdin.flush()
            seconds = float(json.loads(server.stdout.readline()))
            if turn:  # the first step sets things up
                best[n] = min(best.get(n, seconds), seconds)
    for server in servers.values():
        server.communicate()
    batch = int(str(SPEED["batch_size"]))
    for n, seconds in best.items():
        print(f"| {n} processes, {2 // n} threads each | {batch / seconds:.1f} images/s |")
    return best[1] / best[2]


def survive_kills(kills: int) -> float:
    """How many kills a run survived with the final weights of a run that nobody killed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.yaml").write_text(json.dumps(TINY))
        for out, number in (("calm", 0), ("killed", kills)):
            process = torchrun(2, "kills", folder / out, number, restarts=kills, stderr=subprocess.DEVNULL)
            process.communicate()
            if process.returncode:
                return 0.0
        calm, killed = (checkpoint.load_newest(folder / out / "checkpoints")[0] for out in ("calm", "killed"))
        assert calm is not None
        assert killed is not None
        same = all(torch.equal(tensor, killed.tensors[key]) for key, tensor in calm.tensors.items())
        return float(kills if same and calm.step == killed.step else 0)


def compare_all(*, quick: bool) -> dict[str, tuple[float, float, bool]]:
    """Every measure beside its target: value, target, whether larger is better."""
    prototypes, batch = (65_536, 256) if quick else (262_144, 1024)
    print("| measure | value |\n| --- | --- |")
    rows = {"2 processes / 1 process, images/s": (compare_speed(3 if quick else 10), 0.9, True)}
    found = {kind: answer(2, "bytes", kind, prototypes, batch) for kind in ("replicated", "sharded")}
    for kind, sent in found.items():
        formula = computed_bytes(kind, prototypes, batch, 2)
        print(f"| {kind}, K = {prototypes:,}, batch {batch}: MB a step and process | {sent / 1e6:.2f} |")
        print(f"| … by formula, and measured / formula | {formula / 1e6:.2f}, {sent / formula:.3f} |", flush=True)
    rows["bytes of the head, sharded / replicated"] = (found["sharded"] / found["replicated"], 0.1, False)
    held = {kind: answer(2, "memory", kind, prototypes) for kind in ("replicated", "sharded")}
    for kind, size in held.items():
        formula = 4 * 4 * DIMENSIONS * (prototypes // 2 if kind == "sharded" else prototypes)
        print(f"| {kind}: MB of prototypes, teacher, gradient, momentum | {size / 1e6:.1f} |")
        print(f"| … by formula, and measured / formula | {formula / 1e6:.1f}, {size / formula:.3f} |", flush=True)
    rows["memory of the head, sharded / replicated"] = (held["sharded"] / held["replicated"], 0.55, False)
    kills = 2 if quick else KILLS
    rows[f"kills survived of {kills}"] = (survive_kills(kills), float(kills), True)
    return rows


INSIDE: dict[str, Callable[..., None]] = {
    "speed": serve_speed,
    "bytes": measure_bytes,
    "memory": measure_memory,
    "kills": train_through_kills,
}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer prototypes, rounds and kills")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        name, *words = arguments.inside
        INSIDE[name](*(int(word) if word.isdigit() else word for word in words))
        return
    rows = compare_all(quick=arguments.quick)
    for name, (value, target, at_least) in rows.items():
        print(f"| {name} | {value:.3f} (target {'≥' if at_least else '≤'} {target:g}) |")
    if arguments.json:
        print(json.dumps({name: judged(x, target, at_least=up) for name, (x, target, up) in rows.items()}))


if __name__ == "__main__":
    main()
