"""The plot of a dataset: every measure of every method, with the deviation over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.baselines import PIXELS, UNTRAINED
from benchmarks.compare.measures import KNN, MEASURES
from benchmarks.compare.summary import DatasetResults, Finals, MethodResults, values_of
from carp.console.quantities import counted
from carp.report.figures.canvas import BRANCHES, INK, new_figure, save_figure, tidy

_LINES = {UNTRAINED: ":", PIXELS: "--"}
_APART = 0.14  # half the distance of student and teacher


def plot_dataset(dataset: DatasetResults, path: Path) -> None:
    """Draw one panel per measure, with the methods in the order of their k-NN."""
    rows = sorted(dataset.tested, key=lambda row: row.best(KNN))
    figure = new_figure(4.2 * len(MEASURES), 1.2 + 0.42 * len(rows))
    for number, (axis, (measure, title)) in enumerate(
        zip(figure.subplots(1, len(MEASURES), sharey=True), MEASURES.items(), strict=True)
    ):
        for branch in BRANCHES:
            _draw(axis, rows, measure, branch)
        for baseline in dataset.baselines:
            _draw_baseline(axis, baseline, measure, named=number == 0)
        axis.set(xlabel="%", title=title, ylim=(-0.5, len(rows) - 0.5))
        axis.set_yticks(range(len(rows)), [row.title for row in rows])
        tidy(axis)
        if number == 0:
            figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    effort, judged = dataset.effort, "test" if dataset.study["tests"] else "held-out"
    figure.suptitle(
        f"{dataset.name}: {effort.trials} trials each, then {_seeds(rows)} on the {judged} images",
        fontsize=11,
        color=INK,
    )
    save_figure(figure, path)


def _seeds(rows: Sequence[MethodResults]) -> str:
    counts = sorted({len(row.finals) for row in rows})
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _draw(axis: Any, rows: list[MethodResults], measure: str, branch: str) -> None:
    """Draw mean and deviation, and every seed as a small point."""
    label, colour, marker = BRANCHES[branch]
    shift = _APART if branch == "student" else -_APART
    found = [(y + shift, row, mean) for y, row in enumerate(rows) if (mean := row.mean(measure, branch))]
    seeds = [
        (100 * share, y) for y, row, _ in found for r in row.finals if (share := values_of(r, measure).get(branch))
    ]
    if seeds:
        axis.scatter(*zip(*seeds, strict=True), s=8, color=colour, alpha=0.35, lw=0)
    axis.errorbar(
        [mean.mean for _, _, mean in found],
        [y for y, _, _ in found],
        xerr=[mean.deviation or 0.0 for _, _, mean in found],
        fmt=marker,
        color=colour,
        ms=5,
        capsize=3,
        elinewidth=1.1,
        label=label,
    )


def _draw_baseline(axis: Any, baseline: Finals, measure: str, *, named: bool) -> None:
    """Draw what a method must beat as a line from top to bottom."""
    mean = baseline.best(measure)
    axis.axvline(mean, color=INK, lw=0.9, ls=_LINES[baseline.name], alpha=0.6, label=baseline.title if named else None)
