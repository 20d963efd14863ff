"""CARP beside SimCLR, SwAV and DINO: same encoder, views, batch, steps, optimiser family and k-NN.

    python -m benchmarks.yardsticks --train cifar10/train --test cifar10/test --out results.jsonl

The losses and heads of the yardsticks are the `lightly` package's. `--sweep` first gives every method its own choice
of learning rate, judged on held-out training images, never on the test set. Results are appended to `--out`; what is
already there is not run again. `--quick` compares on the embedded images in a minute or two.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from lightly.loss import DINOLoss, NTXentLoss, SwaVLoss
from lightly.models.modules import DINOProjectionHead, SwaVPrototypes
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.shared import CPU, Results, knn_of, part, train_carp
from carp.config import Config, resolve
from carp.config.recipe import read_recipe
from carp.images.loading.in_memory import hold_in_memory
from carp.images.loading.loader import make_loader, normalise
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.model.encoder import build_encoder, num_features
from carp.model.projector import Projector
from carp.random import Purpose, seed_of
from carp.training.optimiser import build_optimiser, set_hyperparameters
from carp.training.schedules import Schedules, cosine

HELD_OUT = 5_000

# Settings of the recipe that a variant of CARP changes.
CARP_VARIANTS: dict[str, dict[str, Any]] = {
    "carp": {},
    "carp, fixed partition": {"partition": "fixed"},
    "carp, no teacher": {"teacher_momentum": 0},
    "carp, 4 shards": {"prototypes": "sharded", "prototype_shards": 4},
    "carp, paper's settings": {
        "entropy_weight": 1.0,
        "embedding_length": None,
        "prototype_lr": 1.0,
        "teacher_momentum": [0.99, 1.0],
        "block_size": 512,
    },
}


def encoder_and_projector(config: Config) -> tuple[nn.Module, nn.Module]:
    """CARP's own encoder and projector, without the larger start that only CARP's loss needs."""
    encoder = build_encoder(config)
    return encoder, Projector(num_features(encoder), config.projector_hidden, config.embedding)


class SimCLR(nn.Module):
    """Contrast every view with all other images of the batch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder, self.head = encoder_and_projector(config)
        self.criterion = NTXentLoss(temperature=0.2)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """The loss of two views of every image."""
        first, second = (self.head(self.encoder(v)).float() for v in views)
        return cast(Tensor, self.criterion(first, second))


class SwAV(nn.Module):
    """Predict a view's balanced code over prototypes from the other view."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder, self.head = encoder_and_projector(config)
        self.prototypes = SwaVPrototypes(config.embedding, 512)
        self.criterion = SwaVLoss(temperature=0.1)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """The loss of two views of every image."""
        self.prototypes.normalize()
        codes = [self.prototypes(F.normalize(self.head(self.encoder(v)).float(), dim=-1)) for v in views]
        return cast(Tensor, self.criterion(codes, []))


class DINO(nn.Module):
    """Match a sharpened and centred momentum teacher across views."""

    OUTPUTS = 2048

    def __init__(self, config: Config) -> None:
        super().__init__()
        student, teacher = (self._branch(config) for _ in range(2))  # weight norm cannot be deep-copied
        teacher.load_state_dict(student.state_dict())
        self.encoder, self.head = student
        self.teacher = teacher.requires_grad_(False)
        self.criterion = DINOLoss(self.OUTPUTS, warmup_teacher_temp_epochs=1)

    def _branch(self, config: Config) -> nn.Sequential:
        encoder = build_encoder(config)
        widths = num_features(encoder), config.projector_hidden, config.embedding, self.OUTPUTS
        return nn.Sequential(encoder, DINOProjectionHead(*widths, batch_norm=True))

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """The loss of two views of every image."""
        with torch.no_grad():
            targets = [self.teacher(v).float() for v in views]
        predictions = [self.head(self.encoder(v)).float() for v in views]
        return cast(Tensor, self.criterion(targets, predictions, epoch=2))

    @torch.no_grad()
    def follow(self, progress: float) -> None:
        """Move the teacher towards the student."""
        student: list[Tensor] = [*self.encoder.parameters(), *self.head.parameters()]
        momentum = cosine(0.99, 1.0, round(1000 * progress), 1000)
        torch._foreach_lerp_(list(self.teacher.parameters()), student, 1 - momentum)


YARDSTICKS: dict[str, type[SimCLR | SwAV | DINO]] = {"simclr": SimCLR, "swav": SwAV, "dino": DINO}


def train_yardstick(method: str, source: ArraySource, config: Config) -> dict[str, nn.Module]:
    """Train a yardstick with CARP's loader, optimiser and schedules; return its encoders by branch."""
    torch.manual_seed(seed_of(config.seed, Purpose.WEIGHTS))
    model = YARDSTICKS[method](config).to(memory_format=torch.channels_last)
    optimiser = build_optimiser(model, config)
    loader = make_loader(source, config)
    schedules = Schedules(config, loader.steps_per_epoch)
    model.train()
    for batch in loader.batches(0, schedules.num_steps):
        progress = batch.step / schedules.num_steps
        set_hyperparameters(optimiser, lr=schedules.lr(batch.step), weight_decay=schedules.weight_decay(batch.step))
        views = [normalise(v, CPU, channels_last=True) for v in batch.views]
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            loss = model(views)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if isinstance(model, DINO):
            model.follow(progress)
    encoders = {"student": model.encoder}
    if isinstance(model, DINO):
        encoders["teacher"] = model.teacher[0]
    return encoders


def measure(
    method: str,
    source: ArraySource,
    values: dict[str, Any],
    bank: ArraySource,
    queries: ArraySource,
) -> dict[str, Any]:
    """Train one method and return k-NN of its encoders, with the time it took."""
    config = resolve({**values, **CARP_VARIANTS.get(method, {})}, num_images=len(source))
    start = time.perf_counter()
    if method in CARP_VARIANTS:
        encoders, _ = train_carp(source, config)
    else:
        encoders = train_yardstick(method, source, config)
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 1), **knn_of(encoders, config.global_size, bank, queries)}


def best_lr(
    method: str, candidates: Sequence[float], values: dict[str, Any], train: ArraySource, results: Results
) -> float:
    """The learning rate with the best k-NN on held-out training images."""
    images = min(values["images"], len(train) - HELD_OUT)
    source, held_out = part(train, HELD_OUT, HELD_OUT + images), part(train, 0, HELD_OUT)
    settings = {k: v for k, v in values.items() if k != "images"}
    scores = {}
    for lr in candidates:
        keys = {"stage": "sweep", "method": method, "lr": lr, "images": images, "epochs": settings["epochs"]}
        row = results.find(**keys) or results.add(
            {**keys, **measure(method, source, {**settings, "lr": [lr, lr / 100]}, source, held_out)}
        )
        scores[lr] = max(row.get("student", 0), row.get("teacher", 0))
    return max(scores, key=lambda lr: scores[lr])


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="embedded:shapes")
    parser.add_argument("--test", default="embedded:shapes-test")
    parser.add_argument("--recipe", default="cifar10-cpu")
    parser.add_argument("--methods", nargs="+", default=[*CARP_VARIANTS, *YARDSTICKS])
    parser.add_argument("--images", type=int, default=10_000, help="training images, chosen at random")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: only the sweep")
    parser.add_argument("--sweep", type=float, nargs="*", default=[], help="learning rates to choose from")
    parser.add_argument("--lr", type=float, nargs="*", default=[], help="one per method, instead of the recipe's")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("yardsticks.jsonl"))
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="embedded images, one seed, a minute or two")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.images, arguments.epochs, arguments.seeds = 4_000, 2, [0]
        arguments.out = Path(tempfile.mkdtemp()) / "quick.jsonl"
    run_all(arguments)


def run_all(arguments: argparse.Namespace) -> None:
    """Sweep, train, evaluate and report."""
    recipe = read_recipe(arguments.recipe)
    values = {**recipe, "epochs": arguments.epochs, "batch_size": arguments.batch_size, "validation": None}
    size = resolve(values, num_images=arguments.images).global_size
    train = hold_in_memory(open_source(arguments.train), size)
    test = hold_in_memory(open_source(arguments.test), size)
    results, table = Results(arguments.out), {}
    for place, method in enumerate(arguments.methods):
        settings = dict(values)
        if arguments.lr:
            settings["lr"] = [arguments.lr[place], arguments.lr[place] / 100]
        elif arguments.sweep:
            lr = best_lr(method, arguments.sweep, {**values, "images": arguments.images}, train, results)
            settings["lr"] = [lr, lr / 100]
        rows = []
        for seed in arguments.seeds:
            keys = {
                "stage": "test",
                "method": method,
                "seed": seed,
                "lr": settings["lr"][0],
                "images": arguments.images,
                "epochs": arguments.epochs,
                "batch_size": arguments.batch_size,
            }
            source = part(train, 0, arguments.images)
            rows.append(
                results.find(**keys)
                or results.add({**keys, **measure(method, source, {**settings, "seed": seed}, train, test)})
            )
        if rows:
            table[method] = rows
    report(table, as_json=arguments.json)


def report(table: dict[str, list[dict[str, Any]]], *, as_json: bool) -> None:
    """Mean and range over seeds of the better-documented branch: the teacher where there is one."""
    print("\n| method | lr | student | teacher | seconds |\n| --- | --- | --- | --- | --- |")
    measures = {}
    for method, rows in table.items():
        cells = []
        for branch in ("student", "teacher"):
            found = [100 * r[branch] for r in rows if branch in r]
            if found:
                deviation = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
                cells.append(f"{statistics.mean(found):.1f}{deviation}")
                measures[f"{method} {branch}"] = {"value": round(statistics.mean(found), 2)}
            else:
                cells.append("–")
        seconds = statistics.median(r["seconds"] for r in rows)
        print(f"| {method} | {rows[0]['lr']:g} | {cells[0]} | {cells[1]} | {seconds:.0f} |")
    if as_json:
        print(json.dumps(measures))


if __name__ == "__main__":
    main()
