"""The paper's block-size table on a small budget: where does training stay healthy, and where does it collapse?

    python -m benchmarks.block_size --train cifar10/train --test cifar10/test --plot block_size.png

Every cell trains CARP with the paper's loss settings (entropy weight 1 unless told; momentum 0.99 → 1, or no teacher)
on the same images for the same number of steps; only the block size differs, from small blocks to a single one (CARL).
Results are appended to `--out`; what is already there is not run again, so two processes may share the work
(`--teacher`).
"""

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared import Results, knn_of, part, train_carp
from carp.config import resolve
from carp.config.recipe import read_recipe
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource

PROTOTYPES = 65_536
BLOCK_SIZES = (32, 128, 512, 2048, 8192, 65_536)
PAPER = {
    "num_prototypes": PROTOTYPES,
    "embedding": 128,
    "embedding_length": None,
    "prototype_lr": 1.0,
    "health_steps": 10,
    "log_steps": 10,
    "validation": None,
}
_KEYS = ("images", "epochs", "batch_size", "lr", "seed", "entropy_weight")
COLOURS = {"healthy": "C2", "at risk": "C1", "collapsed": "C3", "not learning": "C7", "too early to tell": "C9"}


def measure(
    block_size: int, with_teacher: bool, arguments: argparse.Namespace, train: ArraySource, test: ArraySource
) -> dict[str, Any]:
    """Train one cell; return k-NN, kl_to_uniform over the last fifth of the steps, and the verdict."""
    source = part(train, 0, arguments.images)
    values = {
        **read_recipe("cifar10-cpu"),
        **PAPER,
        "block_size": block_size,
        "entropy_weight": arguments.entropy_weight,
        "teacher_momentum": [0.99, 1.0] if with_teacher else 0,
        "epochs": arguments.epochs,
        "batch_size": arguments.batch_size,
        "lr": [arguments.lr, arguments.lr / 100],
        "seed": arguments.seed,
    }
    config = resolve(values, num_images=len(source))
    start = time.perf_counter()
    encoders, metrics = train_carp(source, config)
    seconds = time.perf_counter() - start
    losses = [m for m in metrics if "loss" in m]
    late = losses[-max(1, len(losses) // 5) :]
    health = [m for m in metrics if "health" in m][-1]
    return {
        "seconds": round(seconds, 1),
        "steps": losses[-1]["step"] + 1,
        "kl_to_uniform": round(statistics.mean(m["kl_to_uniform"] for m in late), 4),
        "verdict": health["health"],
        "prototypes_used": round(health["prototypes_used"], 4),
        "effective_rank": round(health["effective_rank"], 2),
        **knn_of(encoders, config.global_size, train, test),
    }


def main() -> None:
    """Parse the command line, fill the table, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="labelled folder of small images, e.g. CIFAR-10")
    parser.add_argument("--test", required=True)
    parser.add_argument("--images", type=int, default=10_000, help="training images, chosen at random")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--entropy-weight", type=float, default=1.0, help="the paper's is 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--block-sizes", type=int, nargs="+", default=list(BLOCK_SIZES))
    parser.add_argument("--teacher", choices=("with", "without", "both"), default="both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("block_size.jsonl"))
    parser.add_argument("--plot", type=Path, default=None, help="PNG file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train, test = (hold_in_memory(open_source(name), 32) for name in (arguments.train, arguments.test))
    results, rows = Results(arguments.out), []
    for with_teacher in {"with": (True,), "without": (False,), "both": (True, False)}[arguments.teacher]:
        for block_size in arguments.block_sizes:
            keys = {
                "block_size": block_size,
                "with_teacher": with_teacher,
                **{name: getattr(arguments, name) for name in _KEYS},
            }
            rows.append(
                results.find(**keys)
                or results.add({**keys, **measure(block_size, with_teacher, arguments, train, test)})
            )
    report(rows)
    if arguments.plot:
        draw(rows, arguments.plot)


def report(rows: list[dict[str, Any]]) -> None:
    """The table in Markdown."""
    print("\n| N_B | teacher | k-NN student, % | k-NN teacher, % | kl_to_uniform | of its limit ln N_B | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        name = row["block_size"]
        limit, teacher = math.log(name), f"{100 * row['teacher']:.1f}" if "teacher" in row else "–"
        print(
            f"| {name:,} | {'yes' if row['with_teacher'] else 'no'} | {100 * row['student']:.1f} | {teacher} | "
            f"{row['kl_to_uniform']:.2f} | {row['kl_to_uniform'] / limit:.0%} | {row['verdict']} |"
        )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """k-NN and kl_to_uniform over the block size; the colour of a point is its verdict."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 4), layout="constrained")
    knn, kl = figure.subplots(1, 2)
    ticks = sorted({r["block_size"] for r in rows})
    for with_teacher, style in ((True, "-"), (False, "--")):
        chosen = sorted((r for r in rows if r["with_teacher"] == with_teacher), key=lambda r: int(r["block_size"]))
        sizes = [r["block_size"] for r in chosen]
        shares = [100 * r["kl_to_uniform"] / math.log(r["block_size"]) for r in chosen]
        for axis, values in ((knn, [100 * r["student"] for r in chosen]), (kl, shares)):
            axis.plot(sizes, values, ls=style, color="0.5", zorder=1)
            axis.scatter(sizes, values, color=[COLOURS[r["verdict"]] for r in chosen], zorder=2)
    for axis, title in ((knn, "k-NN of the student, %"), (kl, "kl_to_uniform, % of its limit ln $N_B$")):
        axis.set(xscale="log", xlabel="block size $N_B$", title=title)
        axis.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axis.grid(alpha=0.3)
    verdicts = [v for v in COLOURS if any(r["verdict"] == v for r in rows)]
    handles = [Line2D([], [], marker="o", ls="", color=COLOURS[v], label=v) for v in verdicts]
    handles += [Line2D([], [], ls=s, color="0.5", label=n) for s, n in (("-", "with teacher"), ("--", "without"))]
    knn.legend(handles=handles, fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
