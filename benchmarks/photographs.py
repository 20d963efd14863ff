"""What does a recipe learn from photographs in an hour, from scratch, and what does SimCLR learn in the same time?

    python -m benchmarks.photographs --train pets-train.csv --test pets-test.csv --minutes 60 \
        --runs runs/photographs --out benchmarks/results/photographs.jsonl

`carp train PHOTOS --recipe folder --minutes 60` beside SimCLR with the same encoder, size of views, batch and time.
Both are judged by k-NN (k = 20), with the training images as bank and the test images as queries, beside the untrained
encoder and raw pixels. `--settings lr=2 temperature=0.2` are SimCLR's; by default, those of its paper. An interrupted
run resumes in `--runs`, and finished rows of OUT are not computed again. Two processes may each take one `--method`;
SimCLR takes over encoder, images, batch, threads and workers of CARP's run, which must have begun, so
`--set global_size=64` changes both.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import carp
from benchmarks.compare.baselines import PIXELS
from benchmarks.compare.effort import Effort
from benchmarks.compare.methods import METHODS
from benchmarks.compare.training import MethodTraining
from benchmarks.shared import CPU, Results, knn_of
from carp.compute.device import best_precision
from carp.config.recipe import parse_overrides
from carp.console.progress import Display
from carp.errors import CarpError, ConfigError
from carp.features.extract import RAW_PIXELS_SIDE
from carp.files.atomic import write_atomic
from carp.images.open_source import open_images
from carp.images.source import Source
from carp.runs.run_folder import open_run
from carp.studies.job_folder import newest_step
from carp.studies.measure import job_seconds
from carp.training.planning.time_budget import FOR_STEPS

CARP, SIMCLR = "carp", "simclr"
_SHARED = (
    *("encoder", "encoder_options", "stem", "stem_stride", "global_size", "batch_size", "workers", "threads"),
    *("flip", "interpolation", "mean", "deviation"),
)
_PLAN, _TIMED_STEPS = "plan.json", 3


def main(words: Sequence[str] | None = None) -> None:
    """Measure what is missing in OUT and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--recipe", default="folder")
    parser.add_argument("--set", dest="changes", nargs="*", default=[], help="settings of the recipe, as key=value")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", nargs="+", choices=[CARP, SIMCLR], default=[CARP, SIMCLR])
    parser.add_argument("--settings", nargs="*", default=[], help="of SimCLR, as key=value")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--out", type=Path, required=True, help="one line per method")
    arguments = parser.parse_args(words)
    results, display = Results(arguments.out), Display()
    train, test = (open_images(name, display) for name in (arguments.train, arguments.test))
    trainers = {CARP: _carp, SIMCLR: _simclr}
    for method in arguments.method:
        keys = {
            "method": method,
            "recipe": " ".join([arguments.recipe, *arguments.changes]),
            "minutes": arguments.minutes,
            "seed": arguments.seed,
        }
        if method == SIMCLR:
            keys["settings"] = _trial(arguments)
        if results.find(**keys) is None:
            encoders, about = trainers[method](_folder(method, arguments), train, arguments)
            knn = _pixels(train, test) if method == CARP else {}
            knn |= knn_of(encoders, about["size"], train, test)
            results.add({**keys, **about, "knn": {branch: round(100 * value, 2) for branch, value in knn.items()}})
    print("\n".join(table(results.rows)))


def _folder(method: str, arguments: argparse.Namespace) -> Path:
    return Path(arguments.runs / f"{method}-seed{arguments.seed}")


def _trial(arguments: argparse.Namespace) -> dict[str, Any]:
    return {**Effort().trial(SIMCLR, 0).point.settings, **parse_overrides(arguments.settings)}


def _pixels(train: Source, test: Source) -> dict[str, float]:
    """Judge small images without an encoder, as `carp eval knn --baselines` does."""
    return knn_of({PIXELS: nn.Flatten()}, RAW_PIXELS_SIDE, train, test)


def _carp(folder: Path, source: Source, arguments: argparse.Namespace) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """Train as a user would; the untrained encoder is judged with it."""
    begin, resumed_at = time.monotonic(), newest_step(folder)
    settings = {"seed": arguments.seed, "report": False, **parse_overrides(arguments.changes)}
    run = carp.train(source, folder, arguments.recipe, minutes=arguments.minutes, quiet=True, **settings)
    spent = _minutes(time.monotonic() - begin, resumed_at, newest_step(folder))
    encoders = {branch: carp.load(run.folder, branch).module for branch in ("untrained", "student", "teacher")}
    return encoders, {"spent": spent, "epochs": run.config.epochs, "size": run.config.global_size}


def _simclr(folder: Path, source: Source, arguments: argparse.Namespace) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """Train SimCLR for as many epochs as fit into the time; the number is kept, so that a resumed run has the same."""
    folder.mkdir(parents=True, exist_ok=True)
    method, begin, resumed_at = METHODS[SIMCLR], time.monotonic(), newest_step(folder)
    trial, base = _trial(arguments), open_run(_folder(CARP, arguments)).config
    if isinstance(base.threads, int):
        torch.set_num_threads(base.threads)
    shared = {name: getattr(base, name) for name in _SHARED} | {"precision": best_precision(CPU)}

    def training(epochs: int) -> MethodTraining:
        common = {**shared, "epochs": epochs, "seed": arguments.seed}
        return MethodTraining(method, trial, source, method.configure(common, trial, num_images=len(source)))

    plan = folder / _PLAN
    if not plan.exists():
        epochs = _epochs(training(base.epochs), 60 * arguments.minutes)
        write_atomic(plan, json.dumps({"epochs": epochs, "minutes": arguments.minutes}))
    planned = json.loads(plan.read_text())
    if planned.get("minutes", arguments.minutes) != arguments.minutes:
        raise ConfigError(
            f"{folder} has a run of {planned['minutes']:g} minutes, received --minutes {arguments.minutes:g}. "
            "Give another --runs."
        )
    chosen = training(planned["epochs"])
    chosen.run(folder)
    spent = _minutes(time.monotonic() - begin, resumed_at, chosen.num_steps)
    return chosen.method.encoders(), {"spent": spent, "epochs": chosen.config.epochs, "size": base.global_size}


def _minutes(seconds: float, resumed_at: int, steps: int) -> float | None:
    """Return the time of the whole run, also of one that was interrupted."""
    whole = job_seconds(seconds, resumed_at, steps)
    return None if whole is None else round(whole / 60, 1)


def _epochs(training: MethodTraining, seconds: float) -> int:
    """Return how many epochs fit into the time, as `carp train --minutes` estimates it."""
    step = statistics.median(training.time_steps(1 + _TIMED_STEPS, time.monotonic)[1:])
    return max(1, int(FOR_STEPS * seconds / (step * training.loader.steps_per_epoch)))


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One row per encoder."""
    lines = ["| method | encoder | views | minutes | epochs | k-NN, % |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        for branch, value in row["knn"].items():
            about = ("", branch, "", 0, 0)
            if branch in ("student", "teacher"):
                about = (row["method"], branch, row["size"], row["spent"], row["epochs"])
            lines.append(f"| {' | '.join(map(str, about))} | {value:.1f} |")
    return lines


if __name__ == "__main__":
    try:
        main()
    except CarpError as error:
        sys.exit(f"error: {error}")
