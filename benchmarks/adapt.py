"""Do adapted weights beat the weights as they are, and training from scratch in the same time?

    python -m benchmarks.adapt --train gtsrb_48/train --test gtsrb_48/test --size 64 --out gtsrb.jsonl \
        --settings flip=0

For every seed: `lite0` (or another `--start`) is adapted with the recipe `adapt` on the training images, without
labels, and an encoder is trained from scratch with the recipe `photos-cpu` for as many minutes. The start, the
checkpoint that `carp.load` chooses, the last checkpoint and the encoder from scratch are judged by k-NN (k = 20) and by
a linear classifier on stored features, with the training images as bank and the test images as queries. Finished rows
of OUT are not computed again; `--report` prints the table of an existing file.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import carp
from carp.config.recipe import parse_overrides
from carp.runs.checkpoint import is_best, list_checkpoints
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import open_run

MEASURES: dict[str, tuple[str, dict[str, Any]]] = {"knn": ("top1@20", {"k": 20}), "linear": ("top1", {"cached": True})}


def main() -> None:
    """Measure what is missing in OUT and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train")
    parser.add_argument("--test")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--start", default="lite0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", nargs="*", default=[], help="of the adapted run, as key=value")
    parser.add_argument("--scratch-settings", nargs="*", default=[], help="of the run from scratch, as key=value")
    parser.add_argument("--out", type=Path, required=True, help="one line per encoder")
    parser.add_argument("--skip-scratch", action="store_true", help="leave out training from scratch")
    parser.add_argument("--report", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if not arguments.report:
        _measure(arguments)
    for line in table(_read(arguments.out)):
        print(line)


def _measure(arguments: argparse.Namespace) -> None:
    """All starts and adapted runs first, so that a partial file answers the first question."""
    out = arguments.out

    def rows() -> dict[tuple[str, int], dict[str, Any]]:
        return {(row["encoder"], row["seed"]): row for row in _read(out)}

    def record(encoder: str, seed: int, **about: Any) -> None:
        row = {"encoder": encoder, "seed": seed, **about}
        print(json.dumps(row), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    if ("start", 0) not in rows():
        record("start", 0, **_judged(arguments.start, arguments))
    for seed in arguments.seeds:
        if ("adapted, last", seed) in rows():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            minutes = _train(run, arguments, arguments.settings, seed, start=arguments.start)
            best = _judged(str(run), arguments)
            record("adapted", seed, **best, minutes=minutes, **_course(run))
            last = (
                best if is_best(list_checkpoints(open_run(run).checkpoints)[-1]) else _judged(f"{run}@last", arguments)
            )
            record("adapted, last", seed, **last, minutes=minutes)
    for seed in [] if arguments.skip_scratch else arguments.seeds:
        if ("from scratch", seed) in rows():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            run, limit = Path(scratch) / "run", rows()["adapted, last", seed]["minutes"]
            minutes = _train(run, arguments, arguments.scratch_settings, seed, "photos-cpu", minutes=limit)
            record("from scratch", seed, **_judged(str(run), arguments), minutes=minutes)


def _train(
    run: Path, arguments: argparse.Namespace, words: Sequence[str], seed: int, recipe: str | None = None, **options: Any
) -> float:
    """Train, and return the minutes that it took."""
    settings = {"global_size": arguments.size, "report": False, "seed": seed, **parse_overrides(words)}
    begin = time.monotonic()
    carp.train(arguments.train, run, recipe, quiet=True, **options, **settings)
    return round((time.monotonic() - begin) / 60, 1)


def _judged(model: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The measures of a model; `RUN@last` is the newest checkpoint of a run, not the best one."""
    found, last = {}, model.endswith("@last")
    with tempfile.TemporaryDirectory() as out:  # the second measure finds the features of the first
        for name, (measure, settings) in MEASURES.items():
            result = carp.evaluate(
                name,
                model.removesuffix("@last"),
                arguments.train,
                test=arguments.test,
                size=arguments.size,
                out=out,
                branch="teacher@last" if last else "teacher",
                **settings,
            )
            found[name] = round(100 * result.values[measure], 2)
    return found


def _course(run: Path) -> dict[str, Any]:
    """The measure without labels over the run."""
    lines = read_metrics(run / "metrics.jsonl")
    start = next((line["label_free_start"] for line in lines if "label_free_start" in line), None)
    course = [line["label_free_teacher"] for line in lines if "label_free_teacher" in line]
    return {"label_free": [start, *course]}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Means and deviations over the seeds."""
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        groups[row["encoder"]].append(row)
    lines = ["| encoder | seeds | minutes | k-NN, % | linear, % |", "| --- | --- | --- | --- | --- |"]
    for encoder, held in groups.items():
        minutes = f"{statistics.mean(row['minutes'] for row in held):.0f}" if "minutes" in held[0] else "0"
        cells = [_cell([row[measure] for row in held]) for measure in MEASURES]
        lines.append(f"| {encoder} | {len(held)} | {minutes} | {' | '.join(cells)} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
