"""The two readings of the paper on a small budget: the printed one, each single difference, and the authors' one.

    python -m benchmarks.readings --train cifar10/train --test cifar10/test --threads 1 --seeds 0 1 2

Encoder, views and optimiser are those of the recipe `cifar10-cpu`, the loss is the paper's: blocks of 512, embeddings
of free length, prototypes as fast as the weights, entropy weight 1, teacher momentum 0.99 → 1. Settings that change
nothing by themselves (`accumulate` without micro-batches, `zero_momentum` with a teacher) are compared where they do:
with micro-batches, and without a teacher. Results are appended to `--out`; what is already there is not run again.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import Results, knn_of, part, train_carp
from carp.config import READINGS, resolve
from carp.config.recipe import read_recipe
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource

PAPER = {
    "embedding_length": None,
    "prototype_lr": 1.0,
    "num_prototypes": 16_384,
    "block_size": 512,
    "entropy_weight": 1.0,
    "teacher_momentum": [0.99, 1.0],
    "log_steps": 10,
    "health_steps": 10,
    "validation": None,
}
_SILENT = {"accumulate", "zero_momentum"}  # no effect without micro-batches and with a teacher
VARIANTS: dict[str, dict[str, Any]] = {
    "printed": {},
    **{f"{key}: {value}": {key: value} for key, value in READINGS["authors"].items() if key not in _SILENT},
    "entropy_weight: 2": {"entropy_weight": 2.0},
    "authors": {"reading": "authors"},
    "micro_batch: 32, accumulate: exact": {"micro_batch": 32},
    "micro_batch: 32, accumulate: independent": {"micro_batch": 32, "accumulate": "independent"},
    "teacher_momentum: 0, zero_momentum: siamese": {"teacher_momentum": 0.0},
    "teacher_momentum: 0, zero_momentum: copy, teacher_update: before": {  # after the step, the copy is the student
        "teacher_momentum": 0.0,
        "zero_momentum": "copy",
        "teacher_update": "before",
    },
}
_KEYS = ("images", "epochs", "batch_size", "lr", "precision")


def measure(
    name: str, seed: int, arguments: argparse.Namespace, train: ArraySource, test: ArraySource
) -> dict[str, Any]:
    """Train one variant; return k-NN, kl_to_uniform over the last fifth of the steps, and the verdict."""
    source = part(train, 0, arguments.images)
    values = {
        **read_recipe("cifar10-cpu"),
        **PAPER,
        "epochs": arguments.epochs,
        "batch_size": arguments.batch_size,
        "lr": [arguments.lr, arguments.lr / 100],
        "precision": arguments.precision,
        "threads": arguments.threads,
        "seed": seed,
        **VARIANTS[name],
    }
    config = resolve(values, num_images=len(source))
    start = time.perf_counter()
    encoders, metrics = train_carp(source, config)
    seconds = time.perf_counter() - start
    losses = [m for m in metrics if "loss" in m]
    late = losses[-max(1, len(losses) // 5) :]
    return {
        "seconds": round(seconds, 1),
        "steps": losses[-1]["step"] + 1,
        "kl_to_uniform": round(statistics.mean(m["kl_to_uniform"] for m in late), 4),
        "verdict": [m for m in metrics if "health" in m][-1]["health"],
        **knn_of(encoders, config.global_size, train, test),
    }


def main() -> None:
    """Parse the command line, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="labelled folder of small images, e.g. CIFAR-10")
    parser.add_argument("--test", required=True)
    parser.add_argument("--images", type=int, default=10_000, help="training images, chosen at random")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 if the processor has it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("readings.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train, test = (hold_in_memory(open_source(name), 32) for name in (arguments.train, arguments.test))
    results, rows = Results(arguments.out), []
    for seed in arguments.seeds:
        for name in arguments.variants:
            keys = {"variant": name, "seed": seed, **{key: getattr(arguments, key) for key in _KEYS}}
            rows.append(results.find(**keys) or results.add({**keys, **measure(name, seed, arguments, train, test)}))
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """The table in Markdown: means and standard deviations over the seeds."""
    print("\n| reading | k-NN student, % | k-NN teacher, % | kl_to_uniform | verdicts |")
    print("| --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        student, teacher = (_spread([100 * row[branch] for row in own], 1) for branch in ("student", "teacher"))
        kl, verdicts = _spread([row["kl_to_uniform"] for row in own], 2), sorted({row["verdict"] for row in own})
        print(f"| {name} | {student} | {teacher} | {kl} | {', '.join(verdicts)} |")


def _spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


if __name__ == "__main__":
    main()
