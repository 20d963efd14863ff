"""The tables of a comparison: Markdown for people, CSV for programs."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.compare.baselines import TITLES
from benchmarks.compare.effort import judgement
from benchmarks.compare.measures import HELD_OUT, MEASURES
from benchmarks.compare.methods import KNOWN
from benchmarks.compare.summary import DatasetResults, Finals, MethodResults, values_of
from carp.console.quantities import counted, duration
from carp.studies.study import BRANCHES, Mean

_NONE = "–"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as GitHub Markdown."""
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def summary_table(datasets: Sequence[DatasetResults], measure: str) -> str:
    """Return a measure of every method on every dataset; the best method is bold where there are several."""
    found = {dataset.name: {row.name: row for row in (*dataset.tested, *dataset.baselines)} for dataset in datasets}

    def value(row: Finals) -> float:
        mean = row.mean(measure, row.branch)
        return 0.0 if mean is None else mean.mean

    def cell(dataset: DatasetResults, name: str) -> str:
        row = found[dataset.name].get(name)
        if row is None:
            return _NONE
        text = mean_text(row.mean(measure, row.branch))
        if not isinstance(row, MethodResults):
            return text
        if len(row.finals) < len(dataset.effort.seeds):
            text += f" ({counted(len(row.finals), 'seed')})"
        others = [value(other) for other in dataset.tested if other.name != name]
        return f"**{text}**" if others and value(row) >= max(others) else text

    return markdown_table(
        [MEASURES[measure], *(dataset.name for dataset in datasets)],
        (
            [title, *(cell(dataset, name) for dataset in datasets)]
            for name, title in {**{name: method.title for name, method in KNOWN.items()}, **TITLES}.items()
            if any(name in rows for rows in found.values())
        ),
    )


def results_table(dataset: DatasetResults) -> str:
    """Return mean ± deviation of every measure and branch; the best of each measure is bold. Baselines come last."""
    head = [
        "method",
        *(f"{title}, {branch}" for title in MEASURES.values() for branch in BRANCHES),
        "seeds",
        "CPU time",
    ]
    best = {measure: max(row.best(measure) for row in dataset.methods) for measure in MEASURES}

    def cell(row: Finals, measure: str, branch: str) -> str:
        mean = row.mean(measure, branch)
        text = mean_text(mean)
        is_best = isinstance(row, MethodResults) and mean is not None and mean.mean == best[measure]
        return f"**{text}**" if is_best else text

    return markdown_table(
        head,
        (
            [
                row.title,
                *(cell(row, measure, branch) for measure in MEASURES for branch in BRANCHES),
                str(len(row.finals)),
                _NONE if row.cpu_seconds is None else duration(row.cpu_seconds),
            ]
            for row in (*dataset.tested, *dataset.baselines)
        ),
    )


def choices_table(dataset: DatasetResults) -> str:
    """Return what every method chose, from how many trials, and what is learned without training."""
    head = [
        "method",
        "trials",
        "diverged",
        "chosen",
        "its settings",
        "its held-out k-NN",
        "k-NN of trial 0",
        "worst to best trial",
    ]
    baselines = ([row.title, *[""] * 4, mean_text(row.mean(HELD_OUT, "student")), "", ""] for row in dataset.baselines)
    return markdown_table(
        head,
        [
            *(
                [
                    row.title,
                    str(len(row.trials)),
                    str(sum(judgement(trial) is None for trial in row.trials)),
                    f"trial {row.chosen.place:g}",
                    settings_text(row.chosen.settings),
                    _percent(judgement(row.chosen)),
                    _percent(judgement(row.trials[0])),
                    _extent([found for trial in row.trials if (found := judgement(trial)) is not None]),
                ]
                for row in dataset.methods
            ),
            *baselines,
        ],
    )


def results_csv(datasets: Sequence[DatasetResults]) -> str:
    """Return one line per dataset, method, measure and branch."""
    head = ["dataset", "method", "measure", "branch", "mean", "deviation", "seeds", "trials", "chosen_trial"]
    rows: list[list[Any]] = []
    for dataset in datasets:
        for row in (*dataset.tested, *dataset.baselines):
            effort = [len(row.trials), f"{row.chosen.place:g}"] if isinstance(row, MethodResults) else [0, ""]
            settings = _json(row.chosen.settings) if isinstance(row, MethodResults) else ""
            for measure in MEASURES:
                for branch in BRANCHES:
                    if (mean := row.mean(measure, branch)) is None:
                        continue
                    numbers = [f"{mean.mean:.4f}", "" if mean.deviation is None else f"{mean.deviation:.4f}"]
                    place = [dataset.name, row.name, measure, branch]
                    rows.append([*place, *numbers, mean.count, *effort, _seconds(row.cpu_seconds), settings])
    return _csv([*head, "cpu_seconds", "settings"], rows)


def jobs_csv(datasets: Sequence[DatasetResults]) -> str:
    """Return one line per trial and per final job, in full precision; final jobs have test values."""
    head = ["dataset", "method", "job", "seed", "judged_by", *(f"{m}_{b}" for m in MEASURES for b in BRANCHES)]
    rows: list[list[Any]] = []
    for dataset in datasets:
        finals = [final for row in (*dataset.tested, *dataset.baselines) for final in row.finals]
        for result in (*dataset.trials, *finals):
            by = "test" if dataset.study["tests"] and result not in dataset.trials else "held-out"
            numbers = [values_of(result, measure).get(branch, "") for measure in MEASURES for branch in BRANCHES]
            times = [_seconds(result.cpu_seconds), _seconds(result.seconds), result.steps]
            name = [dataset.name, result.value, result.variant, result.seed, by]
            rows.append([*name, *numbers, result.verdict, *times, _json(result.settings)])
    return _csv([*head, "verdict", "cpu_seconds", "seconds", "steps", "settings"], rows)


def mean_text(mean: Mean | None) -> str:
    """Return `47.4 ± 0.4`."""
    if mean is None:
        return _NONE
    return f"{mean.mean:.1f}" + ("" if mean.deviation is None else f" ± {mean.deviation:.1f}")


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as `lr 4, temperature 0.2`."""
    return ", ".join(f"{name} {'none' if value is None else f'{value:g}'}" for name, value in settings.items())


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f}"


def _extent(shares: Sequence[float]) -> str:
    return f"{_percent(min(shares))} to {_percent(max(shares))}" if shares else _NONE


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def _json(settings: dict[str, Any]) -> str:
    return json.dumps(settings)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *rows])
    return text.getvalue()
