"""What benchmarks share: parts of a dataset, k-NN of encoders, results that survive an interruption, tables."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import carp
from carp.config import Config
from carp.evaluation.labelled_features import class_numbers
from carp.evaluation.nearest_neighbours import knn_accuracy
from carp.features.extract import extract
from carp.images.labels import single_labels
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.runs.metrics_log import read_metrics

CPU = torch.device("cpu")
Measures = dict[str, tuple[float, float | None, bool]]  # rows of a table: value, target, whether larger is better
Measure = Callable[[bool, int], Measures]  # (quick, rounds)


def part(source: ArraySource, first: int, last: int) -> ArraySource:
    """Images first … last − 1 of a fixed random order."""
    assert source.labels is not None
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0)).numpy()[first:last]
    return ArraySource(source.images[order], source.labels[order], source.classes, name=source.name)


def train_carp(source: ArraySource, config: Config) -> tuple[dict[str, nn.Module], list[dict[str, Any]]]:
    """Train CARP as a user would; return its encoders by branch, and its metrics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = folder / "recipe.yaml"
        recipe.write_text("")  # nothing but the settings
        run = carp.train(source, folder / "run", recipe, quiet=True, **config.model_dump() | {"report": False})
        branches = ("student",) if config.siamese else ("student", "teacher")
        encoders = {branch: carp.load(run.folder, branch).module for branch in branches}
        return encoders, read_metrics(run.folder / "metrics.jsonl")


def knn_of(encoders: dict[str, nn.Module], size: int, bank: Source, queries: Source) -> dict[str, float]:
    """k-NN (k = 20, τ = 0.07) of every encoder; 0 where training diverged."""
    labels = single_labels(bank), class_numbers(bank, queries)[single_labels(queries)]
    accuracies = {}
    for name, encoder in encoders.items():
        vectors = [extract(encoder, s, size=size, device=CPU, batch_size=512).features for s in (bank, queries)]
        finite = all(np.isfinite(v).all() for v in vectors)
        accuracies[name] = knn_accuracy(vectors[0], labels[0], vectors[1], labels[1]) if finite else 0.0
    return accuracies


def judged(value: float, target: float, *, at_least: bool) -> dict[str, float | bool]:
    """A measure beside its target, as every benchmark prints it with --json."""
    return {"value": round(value, 3), "target": target, "ok": value >= target if at_least else value <= target}


def measures_parser(description: str | None, names: Iterable[str], *, rounds: int) -> argparse.ArgumentParser:
    """The options of a benchmark that is a list of measures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--json", action="store_true", help="the measures with a target as the last line")
    parser.add_argument("--only", nargs="+", choices=list(names), default=list(names), help="some of the measures")
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def print_measures(measures: dict[str, Measure], arguments: argparse.Namespace) -> None:
    """Take the measures that were asked for and print their table, each row when it is known."""
    print("| measure | value | target |\n| --- | --- | --- |", flush=True)
    targets: dict[str, dict[str, float | bool]] = {}
    for chosen in arguments.only:
        for name, (value, target, at_least) in measures[chosen](arguments.quick, arguments.rounds).items():
            wanted = "" if target is None else f"{'≥' if at_least else '≤'} {target:g}"
            print(f"| {name} | {value:.4g} | {wanted} |", flush=True)
            if target is not None:
                targets[name] = judged(value, target, at_least=at_least)
    if arguments.json:
        print(json.dumps(targets))


def take_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Best seconds of each."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


class Results:
    """Lines of JSON in a file; a line that is there is not computed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def find(self, **keys: Any) -> dict[str, Any] | None:
        """The row with these keys."""
        return next((r for r in self.rows if all(r.get(k) == v for k, v in keys.items())), None)

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Append a row."""
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        return row
