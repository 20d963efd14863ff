"""Does the verdict on a run agree with what the run is worth? Runs made good or bad on purpose, judged without labels.

    python -m benchmarks.verdicts --cifar10 cifar10 --gtsrb gtsrb --grid report --out verdicts

Every case trains a small ResNet on 32-pixel images for a few hundred steps, without `--val`, and takes the verdict of
its last step. Then labels are used for the first time: k-NN (k = 20) of student and teacher, and of the encoder that
the run began with.

What counts as agreement was fixed before the report grid was run. A run *learned* if the better of student and teacher
gains over the untrained encoder at least half of what the well-set run ("good") gains on the same images in the same
number of steps. (For runs of two steps it is the good run of full length.) A fixed number of points does not serve: two
steps alone can give 3, and different images gain at a different pace.

- `healthy`, `at risk` and `below raw pixels` say that the run learns: right if it learned.
- `not learning`, `collapsed` and `too early to tell` say that there is nothing to use yet: right if it did not.

A second count asks only whether the run is better than the untrained encoder, by more than two standard errors of the
difference between two accuracies on that many queries.

The rules were tuned on other runs, of which `--grid development` is a part; `--grid report` has another seed, other
images where there are enough, and other settings. Every finished run is a JSON file in OUT/GRID, which is not computed
again.
"""

import argparse
import json
import math
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
from carp.config.recipe import read_recipe
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import Subset
from carp.training.loop import build_model

IMAGES = 3_200  # for training and as the bank
QUERIES = 2_000
SHARE = 0.5  # of the good run's gain, from which on a run has learned
STANDARD_ERRORS = 2  # by which a run is better than the untrained encoder
BRANCHES = ("untrained", "student", "teacher")
LEARNS = {"healthy", "at risk", "below raw pixels"}
COMMON: dict[str, Any] = {
    "batch_size": 64,
    "encoder_options": {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 128], "stem_type": "deep", "stem_width": 8},
    "stem_stride": 4,
    "precision": "fp32",
    "health_steps": 20,
    "log_steps": 10,
    "validation": None,
}
# The embedded images have the demo's strong colour changes; photographs keep more of their colours, signs their side.
OF_DATA: dict[str, dict[str, Any]] = {
    "shapes": {"epochs": 12, "batch_size": 128},
    "cifar10": {"epochs": 5, "brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1, "grey": 0.2},
    "gtsrb": {
        "epochs": 7,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.2,
        "hue": 0.05,
        "grey": 0.1,
        "flip": 0,
        "global_scale": [0.4, 1.0],
    },
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
        3,
        [
            Case("good", "cifar10"),
            Case("good", "gtsrb"),
            Case("two steps", "cifar10", {"epochs": 1}, count=128),
            Case("two steps", "gtsrb", {"epochs": 1}, count=128),
            Case("lr 0.00002", "cifar10", _lr(2e-5)),
            Case("lr 400", "cifar10", _lr(400)),
            Case("lr 0.002", "gtsrb", _lr(2e-3)),
            Case("entropy_weight 0", "gtsrb", {"entropy_weight": 0}),
            Case("AdamW, lr 0.001", "cifar10", _adamw(1e-3)),
            Case("AdamW, lr 1e-8", "cifar10", _adamw(1e-8)),
            Case("noise", "gtsrb", images="noise"),
            Case("batch of 8", "cifar10", {"batch_size": 8, "epochs": 1}, count=2_400),
            Case("copies of one image", "gtsrb", images="identical"),
            Case("one block of all prototypes", "cifar10", {"block_size": 2048}),
            Case("blocks of 2", "cifar10", {"block_size": 2}),
            Case("no teacher", "gtsrb", {"teacher_momentum": 0}),
            Case("SGD, lr 0.1", "cifar10", {"optimiser": "sgd", "lr": 0.1, "lr_scaling": "none"}),
            Case("teacher_momentum 0.5", "cifar10", {"teacher_momentum": 0.5}),
            Case("entropy_weight 0.05", "cifar10", {"entropy_weight": 0.05}),
            Case("lr 800", "gtsrb", _lr(800)),
            Case("no augmentation", "cifar10", NO_CHANGE),
            Case("entropy_weight 0, no teacher", "gtsrb", {"entropy_weight": 0, "teacher_momentum": 0}),
            Case("good", "shapes"),
            Case("lr 0.00005", "shapes", _lr(5e-5)),
            Case("lr 500", "shapes", _lr(500)),
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
    return _held(train, seed * IMAGES, IMAGES), _held(test, seed * QUERIES // 2, QUERIES)


def _held(source: Source, first: int, count: int) -> ArraySource:
    """Some images of a fixed random order, in memory; the first ones where there are too few."""
    if first + count > len(source):
        first = 0
    order = np.random.default_rng(0).permutation(len(source))[first : first + count]
    return hold_in_memory(Subset(source, order), 32)


def images_of(case: Case, train: ArraySource, seed: int) -> ArraySource:
    """What a case trains on."""
    if case.images == "identical":
        return ArraySource(np.repeat(train.images[seed : seed + 1], case.count, axis=0), name="identical")
    if case.images == "noise":
        shape = (case.count, *train.images.shape[1:])
        return ArraySource(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), name="noise")
    return part(train, 0, case.count)


def config_of(case: Case, seed: int) -> Config:
    """The demo's recipe made cheaper, the views that suit the images, and what the case changes."""
    values = {**read_recipe("demo"), **COMMON, **OF_DATA[case.data], "seed": seed, **case.settings}
    return resolve(values, num_images=case.count)


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


def gain(row: dict[str, Any]) -> float:
    """k-NN of the better branch above that of the untrained encoder."""
    knn = row["knn"]
    return float(max(value for name, value in knn.items() if name != "untrained") - knn["untrained"])


def agrees(row: dict[str, Any], good: dict[str, Any]) -> bool:
    """Whether the verdict says what k-NN says; `good` is the well-set run on the same images."""
    learned = gain(row) > 0 and gain(row) >= SHARE * gain(good)
    return (row["verdict"] in LEARNS) == learned


def better_than_untrained(row: dict[str, Any]) -> bool:
    """Whether the better branch beats the untrained encoder by more than the queries differ by chance."""
    untrained = row["knn"]["untrained"]
    run = untrained + gain(row)
    variance = (untrained * (1 - untrained) + run * (1 - run)) / QUERIES
    return gain(row) > STANDARD_ERRORS * math.sqrt(variance)


def rows_of(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per case, computed unless its file is there."""
    seed, cases = GRIDS[arguments.grid]
    folder = arguments.out / arguments.grid
    folder.mkdir(parents=True, exist_ok=True)
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
    good = {row["data"]: row for row in rows if row["name"] == "good"}
    right = [agrees(row, good[row["data"]]) for row in rows]
    print("\n| images | run | steps | untrained | student | teacher | share of the good gain | verdict | agrees |")
    print("| --- " * 9 + "|")
    for row, agree in zip(rows, right, strict=True):
        knn = [f"{100 * row['knn'][name]:.1f}" if name in row["knn"] else "–" for name in BRANCHES]
        share = gain(row) / gain(good[row["data"]])
        print(
            f"| {row['data']} | {row['name']} | {row['steps']} | {' | '.join(knn)} | {share:.2f} | "
            f"{row['verdict']} | {'yes' if agree else '**no**'} |"
        )
    simple = [(row["verdict"] in LEARNS, better_than_untrained(row)) for row in rows]
    print(f"\n{sum(right)} of {len(rows)} agree.")
    print(
        f"Against the untrained encoder alone: {sum(says == is_so for says, is_so in simple)} of {len(rows)} agree; "
        f"{sum(says and not is_so for says, is_so in simple)} learn by their verdict but not by k-NN, "
        f"{sum(is_so and not says for says, is_so in simple)} the other way round."
    )


def main() -> None:
    """Parse the command line, run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, required=True, help="folder with train and test")
    parser.add_argument("--gtsrb", type=Path, required=True, help="folder with train and test")
    parser.add_argument("--grid", choices=list(GRIDS), default="report")
    parser.add_argument("--out", type=Path, default=Path("verdicts"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report(list(rows_of(arguments)))


if __name__ == "__main__":
    main()
