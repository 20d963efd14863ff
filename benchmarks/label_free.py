"""Which measure without labels follows k-NN? Checkpoints of real runs, good and bad, judged by both.

    python -m benchmarks.label_free --cifar10 cifar10 --gtsrb gtsrb_48 --out label_free.jsonl

Every run starts from `lite0` (or another `--start`) and continues on images of CIFAR-10 or GTSRB at 32 pixels, with
settings that help, do little or destroy the encoder. Every epoch is kept; epoch 0, the start, is measured once per
dataset. For each of them the benchmark measures k-NN of the teacher with labels (k = 20, a bank of training images,
test images as queries), and every measure of `carp.evaluation.during_training.label_free` on training images that no
run sees.

The reported number is Spearman's rank correlation with k-NN over the checkpoints of one dataset, because only those are
ever compared, and its mean over the datasets. Finished checkpoints are lines of OUT, which are not computed again;
`--report` prints the table of an existing file.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import carp
from benchmarks.shared import CPU, knn_of, part
from carp.errors import NonFiniteError
from carp.evaluation.during_training.label_free import MEASURES, features_of_views
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import at_random
from carp.runs.run_folder import open_run
from carp.studies.agreement import spearman

SIDE = 32
BANK, QUERIES, HELD_OUT = 1_000, 800, 256
COMMON: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 32,
    "num_prototypes": 512,
    "block_size": 32,
    "projector_hidden": 512,
    "embedding": 128,
    "teacher_momentum": [0.9, 1.0],
    "precision": "fp32",
    "threads": 1,
    "keep_epochs": 1,
    "health_steps": 1000,
    "global_size": SIDE,
    "held_out": 0,  # the benchmark holds out its own images
    "start_share": 0.0,  # so that wrong settings do more harm
}
# Settings of a run beside those of the recipe: some suit it, others are wrong on purpose
RUNS: dict[str, dict[str, Any]] = {
    "recipe": {"start_share": 0.5},
    "faster": {"lr": [2e-3, 2e-5]},
    "too fast": {"lr": [0.05, 0.0005]},
    "statistics of batches": {"encoder_statistics": "batch", "lr": [2e-3, 2e-5]},
    "tiny crops": {"lr": [2e-3, 2e-5], "global_scale": [0.05, 0.15]},
    "no colours": {"lr": [2e-3, 2e-5], "jitter": 0.0, "grey": 0.0},
    "no entropy": {"lr": [2e-3, 2e-5], "entropy_weight": 0.0},
    "lars": {"encoder_statistics": "batch", "optimiser": "lars", "lr": [4.0, 0.04], "weight_decay": 1e-6},
}


def main() -> None:
    """Measure what is missing in OUT and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="folder with train and test")
    parser.add_argument("--gtsrb", type=Path, help="folder with train and test")
    parser.add_argument("--out", type=Path, required=True, help="one line per checkpoint")
    parser.add_argument("--start", default="lite0", help="weights that the runs start from")
    parser.add_argument("--images", type=int, default=384, help="images that a run trains on")
    parser.add_argument("--report", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if not arguments.report:
        folders = {"gtsrb": arguments.gtsrb, "cifar10": arguments.cifar10}
        sets = {name: _Images(folder, arguments.images) for name, folder in folders.items() if folder is not None}
        for name in RUNS:  # run by run, so that a partial file has every dataset
            for data, images in sets.items():
                _measure(name, data, images, arguments.start, arguments.out)
    for line in table(list(_read(arguments.out).values())):
        print(line)


class _Images:
    """Disjoint parts of a dataset: held out, and a bank whose first images are trained on; test images as queries."""

    def __init__(self, folder: Path, images: int) -> None:
        whole = hold_in_memory(at_random(open_source(folder / "train"), HELD_OUT + BANK, seed=0), SIDE)
        self.held_out, self.bank = part(whole, 0, HELD_OUT), part(whole, HELD_OUT, len(whole))
        self.queries = hold_in_memory(at_random(open_source(folder / "test"), QUERIES, seed=0), SIDE)
        assert self.bank.labels is not None
        self.train = ArraySource(self.bank.images[:images], self.bank.labels[:images], self.bank.classes)


def _measure(name: str, data: str, images: _Images, start: str, out: Path) -> None:
    """Train one run and judge its epochs, except those that OUT has."""
    done = _read(out)
    keys = {0: f"{data}/start"} | {epoch: f"{data}/{name}@{epoch}" for epoch in range(1, COMMON["epochs"] + 1)}
    if all(key in done for key in keys.values()):
        return
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        with suppress(NonFiniteError):  # its checkpoints up to then count
            carp.train(images.train, run, "adapt", start=start, quiet=True, **{**COMMON, **RUNS[name]})
        for epoch in open_run(run).epochs():
            if keys[epoch] not in done:
                row = {"key": keys[epoch], "data": data, **_judge(f"{run}@{epoch}", images)}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


def _judge(model: str, images: _Images) -> dict[str, float]:
    """k-NN and all measures of the teacher; features that are not finite are worth nothing."""
    encoder = carp.load(model, device="cpu").module
    knn = knn_of({"teacher": encoder}, SIDE, images.bank, images.queries)["teacher"]
    images_MF, views_VMF = features_of_views(encoder, images.held_out, size=SIDE, device=CPU)
    finite = np.isfinite(images_MF).all() and np.isfinite(views_VMF).all()
    found = {name: measure(images_MF, views_VMF) if finite else 0.0 for name, measure in MEASURES.items()}
    return {"knn": knn, **found}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The correlation of every measure with k-NN, by dataset and on average."""
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        groups[row["data"]].append(row)
    named = {name: held for name, held in groups.items() if len(held) > 2}
    lines = [f"{'':<20}" + "".join(f"{name:>12}" for name in [*named, "mean"])]
    for measure in MEASURES:
        found = [spearman([r["knn"] for r in held], [r[measure] for r in held]) or 0.0 for held in named.values()]
        lines.append(f"{measure:<20}" + "".join(f"{value:>12.2f}" for value in [*found, float(np.mean(found or [0]))]))
    counts = [len(held) for held in named.values()]
    return [*lines, f"{'checkpoints':<20}" + "".join(f"{count:>12}" for count in [*counts, sum(counts)])]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return {row["key"]: row for row in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    main()
