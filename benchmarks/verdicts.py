"""Does the verdict on a run agree with what the run is worth? Runs made good or bad on purpose, judged without labels.

    python -m benchmarks.verdicts --cifar10 cifar10 --gtsrb gtsrb --grid report --out verdicts

Every case trains a quarter-width ResNet-18 on 32-pixel images for a few hundred steps, without `--val`, and takes the
verdict of its last step. Then labels are used for the first time: k-NN (k = 20) of student and teacher, and of the
encoder that the run began with.

What counts as agreement was fixed before the report grid was run. A run *learned* if the better of student and teacher
is at least 5 points above the untrained encoder. Less can come without learning: the untrained encoder has no batch
norm statistics, and training on copies of a single image gives up to 3 points.

- `healthy` and `at risk` say that the run learns: right if it learned.
- `not learning`, `collapsed` and `too early to tell` say that there is nothing to use yet: right if it did not.

The rules were tuned on `--grid development`; `--grid report` has other seeds, other images and other settings. Every
finished run is a JSON file in OUT/GRID, which is not computed again; several processes may share a grid (`--share`).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.shared import knn_of, part, train_carp
from carp.config import Config, resolve
from carp.data.memory import hold_in_memory
from carp.data.part import Part
from carp.data.source import ArraySource, Source, open_source
from carp.recipe import read_recipe
from carp.training.loop import build_model

IMAGES = 4_800  # for training and as the bank
QUERIES = 2_000
MARGIN = 0.05  # k-NN above the untrained encoder from which on a run has learned something
BRANCHES = ("untrained", "student", "teacher")
LEARNS = {"healthy", "at risk"}
COMMON: dict[str, Any] = {
    "epochs": 7,
    "stem_stride": 4,
    "precision": "fp32",
    "health_steps": 20,
    "log_steps": 10,
    "validation": None,
}
NO_CHANGE: dict[str, Any] = {
    "global_scale": [1.0, 1.0],
    "flip": 0,
    "jitter": 0,
    "grey": 0,
    "solarise": [0, 0, 0],
}


@dataclass(frozen=True)
class Case:
    """A run made good or bad on purpose."""

    name: str
    data: str
    settings: dict[str, Any] = field(default_factory=dict)
    images: str = "own"  # own, "identical" or "noise"
    count: int = IMAGES


def _lr(value: float) -> dict[str, Any]:
    return {"lr": [value, value / 100]}


def _adamw(lr: float) -> dict[str, Any]:
    return {"optimiser": "adamw", "lr": lr, "lr_scaling": "none"}


GRIDS: dict[str, tuple[int, list[Case]]] = {
    "development": (
        0,
        [
            Case("good", "shapes"),
            Case("good", "cifar10"),
            Case("good", "gtsrb"),
            Case("lr 0.001", "shapes", _lr(1e-3)),
            Case("lr 100", "cifar10", _lr(100)),
            Case("lr 100", "shapes", _lr(100)),
            Case("entropy_weight 0", "cifar10", {"entropy_weight": 0}),
            Case("entropy_weight 0, no teacher", "shapes", {"entropy_weight": 0, "teacher_momentum": 0}),
            Case("entropy_weight 0.1", "gtsrb", {"entropy_weight": 0.1}),
            Case("copies of one image", "cifar10", images="identical"),
            Case("no augmentation", "cifar10", NO_CHANGE),
            Case("no augmentation", "gtsrb", NO_CHANGE),
        ],
    ),
    "report": (
        1,
        [
            Case("good", "cifar10"),
            Case("good", "gtsrb", {"epochs": 6}),
            Case("good", "shapes"),
            Case("lr 0.0001", "cifar10", _lr(1e-4)),
            Case("lr 0.0001", "gtsrb", _lr(1e-4)),
            Case("lr 0.0003", "shapes", _lr(3e-4)),
            Case("AdamW, lr 1e-7", "cifar10", _adamw(1e-7)),
            Case("lr 200", "cifar10", _lr(200)),
            Case("lr 60", "gtsrb", _lr(60)),
            Case("lr 300", "shapes", _lr(300)),
            Case("entropy_weight 0, no teacher", "cifar10", {"entropy_weight": 0, "teacher_momentum": 0}),
            Case("entropy_weight 0", "shapes", {"entropy_weight": 0}),
            Case("one block of all prototypes", "cifar10", {"block_size": 2048}),
            Case("blocks of 4", "cifar10", {"block_size": 4}),
            Case("no teacher", "cifar10", {"teacher_momentum": 0}),
            Case("teacher_momentum 0.5", "cifar10", {"teacher_momentum": 0.5}),
            Case("batch of 4", "cifar10", {"batch_size": 4, "epochs": 1}, count=600),
            Case("two steps", "cifar10", {"epochs": 1}, count=256),
            Case("two steps", "gtsrb", {"epochs": 1}, count=256),
            Case("noise", "cifar10", images="noise"),
            Case("copies of one image", "shapes", images="identical"),
            Case("no augmentation", "cifar10", NO_CHANGE),
        ],
    ),
}


def load(arguments: argparse.Namespace, data: str, seed: int) -> tuple[ArraySource, ArraySource]:
    """Training images and queries of one kind; another seed takes other images where there are enough."""
    names = {
        "shapes": ("embedded:shapes", "embedded:shapes-test"),
        "cifar10": (f"{arguments.cifar10}/train", f"{arguments.cifar10}/test"),
        "gtsrb": (f"{arguments.gtsrb}/train", f"{arguments.gtsrb}/test"),
    }[data]
    train, test = map(open_source, names)
    first = seed * IMAGES if (seed + 1) * IMAGES <= len(train) else 0
    return _held(train, first, IMAGES), _held(test, 0, QUERIES)


def _held(source: Source, first: int, count: int) -> ArraySource:
    """Some images of a fixed random order, in memory."""
    order = np.random.default_rng(0).permutation(len(source))[first : first + count]
    return hold_in_memory(Part(source, order), 32)


def images_of(case: Case, train: ArraySource, seed: int) -> ArraySource:
    """What a case trains on."""
    if case.images == "identical":
        return ArraySource(np.repeat(train.images[seed : seed + 1], case.count, axis=0), name="identical")
    if case.images == "noise":
        shape = (case.count, *train.images.shape[1:])
        return ArraySource(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), name="noise")
    return part(train, 0, case.count)


def config_of(case: Case, seed: int) -> Config:
    """The demo's recipe, with gentler colours for photographs, and what the case changes."""
    values = {**read_recipe("demo"), **COMMON}
    if case.data != "shapes":
        values |= {"epochs": 4, "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "grey": 0.2}
    return resolve({**values, "seed": seed, **case.settings}, num_images=case.count)


def run(case: Case, seed: int, train: ArraySource, test: ArraySource) -> dict[str, Any]:
    """Train one case; return its verdict, what was measured, and k-NN."""
    config, start = config_of(case, seed), time.perf_counter()
    untrained: dict[str, nn.Module] = {"untrained": build_model(config, torch.device("cpu")).student.encoder}
    encoders, metrics = train_carp(images_of(case, train, seed), config)
    health = [line for line in metrics if "health" in line]
    return {
        "name": case.name,
        "data": case.data,
        "settings": case.settings,
        "verdict": health[-1]["health"],
        "cause": health[-1]["cause"],
        "steps": health[-1]["step"] + 1,
        "knn": knn_of({**untrained, **encoders}, config.global_size, train, test),
        "seconds": round(time.perf_counter() - start, 1),
        "health": health,
    }


def agrees(row: dict[str, Any]) -> bool:
    """Whether the verdict says what k-NN says."""
    knn = row["knn"]
    best = max(value for name, value in knn.items() if name != "untrained")
    return bool((row["verdict"] in LEARNS) == (best >= knn["untrained"] + MARGIN))


def rows_of(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per case, computed unless its file is there."""
    seed, cases = GRIDS[arguments.grid]
    folder = arguments.out / arguments.grid
    folder.mkdir(parents=True, exist_ok=True)
    number, of = map(int, arguments.share.split("/"))
    cases = cases[number - 1 :: of]
    sources: dict[str, tuple[ArraySource, ArraySource]] = {}
    begun, left = time.perf_counter(), [c for c in cases if not _file(folder, c).exists()]
    for case in cases:
        path = _file(folder, case)
        if not path.exists():
            if case.data not in sources:
                sources[case.data] = load(arguments, case.data, seed)
            row = run(case, seed, *sources[case.data])
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(row))
            partial.rename(path)
            done = left.index(case) + 1
            minutes = (time.perf_counter() - begun) / done * (len(left) - done) / 60
            print(
                f"{done}/{len(left)}  {case.name}: {row['verdict']}, {row['knn']}, {minutes:.0f} min left", flush=True
            )
        yield json.loads(path.read_text())


def _file(folder: Path, case: Case) -> Path:
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in case.name)
    return folder / f"{case.data}-{name}.json"


def report(rows: list[dict[str, Any]]) -> None:
    """The table in Markdown."""
    print("\n| images | run | steps | untrained | student | teacher | verdict | agrees |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        knn = [f"{100 * row['knn'][name]:.1f}" if name in row["knn"] else "–" for name in BRANCHES]
        print(
            f"| {row['data']} | {row['name']} | {row['steps']} | {' | '.join(knn)} | "
            f"{row['verdict']} | {'yes' if agrees(row) else '**no**'} |"
        )
    print(f"\n{sum(map(agrees, rows))} of {len(rows)} agree.")


def main() -> None:
    """Parse the command line, run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, required=True, help="folder with train and test")
    parser.add_argument("--gtsrb", type=Path, required=True, help="folder with train and test")
    parser.add_argument("--grid", choices=list(GRIDS), default="report")
    parser.add_argument("--share", default="1/1", help="which cases: 2/3 is the second third, for three processes")
    parser.add_argument("--out", type=Path, default=Path("verdicts"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report(list(rows_of(arguments)))


if __name__ == "__main__":
    main()
