"""Which measure without labels follows k-NN? Checkpoints of real runs, good and bad, judged by both.

    python -m benchmarks.label_free --cifar10 cifar10 --gtsrb gtsrb_48 --out label_free.jsonl

Every run starts from the weights of another run (a small ResNet, trained on 2,400 images of CIFAR-10 for a few epochs)
or of `lite0`, and continues on images of CIFAR-10 or GTSRB with settings that help, hurt or do nothing. Every epoch is
kept; epoch 0 is the start. For each of them the benchmark measures k-NN with labels (k = 20, a bank of training images,
test images as queries), and every measure of `carp.evaluation.label_free` on training images that no run sees.

The reported number is Spearman's rank correlation with k-NN over the checkpoints of one dataset and one start, because
only those are ever compared, and its mean over these groups, weighted by their checkpoints. Finished checkpoints are
lines of OUT, which are not computed again; `--report` prints the table of an existing file.
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
from carp.evaluation.label_free import MEASURES, features_of_views
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import at_random
from carp.runs.run_folder import open_run
from carp.studies.agreement import spearman

SIDE = 32
BANK, QUERIES, HELD_OUT = 1_200, 800, 300
BASE_IMAGES, BASE_EPOCHS = 2_400, 6
COMMON: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 64,
    "num_prototypes": 1024,
    "block_size": 64,
    "projector_hidden": 512,
    "embedding": 128,
    "precision": "fp32",
    "threads": 1,
    "keep_epochs": 1,
    "health_steps": 1000,
    "held_out": 0,  # the benchmark holds out its own images
}
SMALL = {
    "encoder": "resnet18",
    "encoder_options": {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 128], "stem_type": "deep", "stem_width": 8},
    "stem_stride": 4,
}
# Settings of a run: some suit it, others are wrong on purpose
RUNS: dict[str, dict[str, Any]] = {
    "good": {},
    "too fast": {"lr": [40.0, 0.4]},
    "slow": {"lr": [0.4, 0.004]},
    "no entropy": {"entropy_weight": 0.0},
    "no colours": {"jitter": 0.0, "grey": 0.0},
    "no crops": {"global_scale": [0.9, 1.0]},
    "tiny crops": {"global_scale": [0.05, 0.15]},
    "far too fast": {"lr": [400.0, 4.0]},
}
LITE0_RUNS = ("good", "too fast", "slow")
LITE0_IMAGES = 512


def main() -> None:
    """Measure what is missing in OUT and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="folder with train and test")
    parser.add_argument("--gtsrb", type=Path, help="folder with train and test")
    parser.add_argument("--out", type=Path, required=True, help="one line per checkpoint")
    parser.add_argument("--images", type=int, default=1_200, help="images that a run trains on")
    parser.add_argument("--report", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    done = _read(arguments.out)
    if not arguments.report:
        folders = {"cifar10": arguments.cifar10, "gtsrb": arguments.gtsrb}
        given = {name: folder for name, folder in folders.items() if folder is not None}
        with tempfile.TemporaryDirectory() as scratch:
            _measure(given, arguments.out, done, arguments.images, Path(scratch))
        done = _read(arguments.out)
    for line in table(list(done.values())):
        print(line)


def _measure(folders: dict[str, Path], out: Path, done: dict[str, Any], images: int, scratch: Path) -> None:
    sets = {name: _Images(folder) for name, folder in folders.items()}
    base = scratch / "base"
    # Cheap runs first, and round by round, so that a partial file has every dataset
    for start, names in {"base": tuple(RUNS), "lite0": LITE0_RUNS}.items():
        for name in names:
            for data, held in sets.items():
                key = f"{start}/{data}/{name}"
                if all(f"{key}@{epoch}" in done for epoch in range(COMMON["epochs"] + 1)):
                    continue
                if start == "base" and not base.exists():
                    first = next(iter(sets.values()))
                    more = {**COMMON, **SMALL, "epochs": BASE_EPOCHS}
                    carp.train(first.train(BASE_IMAGES), base, "small-images", quiet=True, **more)
                train = held.train(images if start == "base" else LITE0_IMAGES)
                run = scratch / key
                source = base if start == "base" else start
                with suppress(NonFiniteError):  # its checkpoints up to then count
                    carp.train(train, run, "small-images", start=source, quiet=True, **{**COMMON, **RUNS[name]})
                for epoch in open_run(run).epochs():
                    if f"{key}@{epoch}" not in done:
                        row = {"key": f"{key}@{epoch}", "group": f"{start}/{data}", **_judge(f"{run}@{epoch}", held)}
                        with out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        print(row, flush=True)


class _Images:
    """Disjoint parts of a dataset: held out, bank, training, and test images as queries."""

    def __init__(self, folder: Path) -> None:
        whole = hold_in_memory(at_random(open_source(folder / "train"), HELD_OUT + BASE_IMAGES, seed=0), SIDE)
        self.held_out, self._rest = part(whole, 0, HELD_OUT), part(whole, HELD_OUT, len(whole))
        self.bank = self.train(BANK)
        self.queries = hold_in_memory(at_random(open_source(folder / "test"), QUERIES, seed=0), SIDE)

    def train(self, images: int) -> ArraySource:
        rest = self._rest
        assert rest.labels is not None
        return ArraySource(rest.images[:images], rest.labels[:images], rest.classes, name=rest.name)


def _judge(model: str, held: _Images) -> dict[str, float]:
    """k-NN and all measures of the teacher; a run that diverged is worth nothing."""
    encoder = carp.load(model, device="cpu").module
    knn = knn_of({"teacher": encoder}, SIDE, held.bank, held.queries)["teacher"]
    images_MF, views_VMF = features_of_views(encoder, held.held_out, size=SIDE, device=CPU)
    finite = np.isfinite(images_MF).all() and np.isfinite(views_VMF).all()
    found = {name: measure(images_MF, views_VMF) if finite else 0.0 for name, measure in MEASURES.items()}
    return {"knn": knn, **found}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The correlation of every measure with k-NN, by group and over all."""
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        groups[row["group"]].append(row)
    groups = defaultdict(list, {name: held for name, held in groups.items() if len(held) > 2})
    lines = [f"{'':<20}" + "".join(f"{name:>20}" for name in groups) + f"{'mean':>20}"]
    counts = [len(held) for held in groups.values()]
    for measure in MEASURES:
        found = [spearman([r["knn"] for r in held], [r[measure] for r in held]) or 0.0 for held in groups.values()]
        mean = float(np.average(found, weights=counts)) if found else float("nan")
        lines.append(f"{measure:<20}" + "".join(f"{value:>20.2f}" for value in [*found, mean]))
    return [*lines, f"{'checkpoints':<20}" + "".join(f"{count:>20}" for count in [*counts, sum(counts)])]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return {row["key"]: row for row in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    main()
