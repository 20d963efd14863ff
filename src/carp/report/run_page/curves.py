"""The curves of one or more runs, from what they recorded while they trained."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.report.pages.charts import PALETTE, Chart, Line
from carp.report.pages.template import text_for_scripts
from carp.report.run_page.run_records import RunRecords

_MOST_POINTS = 1500  # of a curve; a screen has no more columns
_MOST_CLASSES = 60  # of a matrix
_DASHES = ("solid", "dash", "dot")


def run_charts(runs: Sequence[RunRecords]) -> list[Chart]:
    """All charts that the records allow."""
    made = (chart(runs) for chart in (_losses, _knn, _recognition, _certainty, _health, _rates))
    return [chart for chart in made if chart is not None]


def _curves(
    runs: Sequence[RunRecords], values: dict[str, Callable[[dict[str, Any]], Any]], *, marks: bool = False
) -> list[Line]:
    """One line per run and value. Several runs differ in colour and values in dashes; one run has a colour for each."""
    lines, alone = [], len(runs) == 1
    for number, run in enumerate(runs):
        for place, (name, value) in enumerate(values.items()):
            found = [(run.epoch_of(line["step"]), got) for line in run.metrics if (got := value(line)) is not None]
            if not found:
                continue
            x, y = zip(*_thinned(found), strict=True)
            label = name if alone else f"{text_for_scripts(run.name)}: {name}"
            colour = PALETTE[(place if alone else number) % len(PALETTE)]
            dash = "solid" if alone else _DASHES[place % len(_DASHES)]
            lines.append(Line(label, [round(each, 4) for each in x], y, colour, dash, marks))
    return lines


def _thinned(points: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    places = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).round().astype(int))
    return [points[place] for place in places.tolist()]


def _get(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda line: line.get(name)


def _losses(runs: Sequence[RunRecords]) -> Chart | None:
    lines = _curves(runs, {name: _get(name) for name in ("consistency", "kl_to_uniform", "koleo")})
    if not lines:
        return None
    limit = math.log(max(2, runs[0].config.block_size))
    alone = len(runs) == 1
    levels = (
        [("uniform assignments", 2 * limit, "student"), ("one prototype takes all", limit, "teacher")] if alone else []
    )
    about = "Consistency falls as views of an image agree; kl_to_uniform stays low while prototypes are used evenly."
    with_koleo = any("koleo" in line for run in runs for line in run.metrics)
    if with_koleo:
        about += " koleo falls as images move away from their nearest neighbours."
    if not alone:
        return Chart("losses", "Loss terms", "epoch", "nats", lines, about=about)
    return Chart("losses", "Loss terms", "epoch", "nats", lines, levels, about, from_zero=not with_koleo)


def _knn(runs: Sequence[RunRecords]) -> Chart | None:
    lines = _curves(runs, {"student": _get("knn_student"), "teacher": _get("knn_teacher")}, marks=True)
    if not lines:
        return None
    levels = []
    for name, label in (
        ("knn_start", "start"),
        ("knn_raw_pixels", "raw pixels"),
        ("knn_untrained", "untrained encoder"),
    ):
        value = next((line[name] for line in runs[0].metrics if name in line), None)
        if value is not None:
            levels.append((label, value, "faint"))
    about = "Share of validation images whose nearest neighbours have the same class. Training never sees the labels."
    return Chart("accuracy", "k-NN accuracy", "epoch", "accuracy", lines, levels, about, percent=True)


def _recognition(runs: Sequence[RunRecords]) -> Chart | None:
    """The measure of runs with a start and without labels."""
    lines = _curves(runs, {"student": _get("label_free_student"), "teacher": _get("label_free_teacher")}, marks=True)
    if not lines:
        return None
    start = next((line["label_free_start"] for run in runs for line in run.metrics if "label_free_start" in line), None)
    levels = [] if start is None else [("start", start, "faint")]
    about = (
        "Share of views of held-out images that find another view of the same image. The run does not train on them."
    )
    return Chart("recognition", "Held-out views recognised", "epoch", "share", lines, levels, about, percent=True)


def _certainty(runs: Sequence[RunRecords]) -> Chart | None:
    lines = _curves(runs, {"student": _get("certainty"), "teacher": _get("teacher_certainty")})
    if not lines:
        return None
    outcomes = max(2, runs[0].config.block_size)
    about = "Mean of the largest assignment in a block. The loss alone sharpens assignments; there is no temperature."
    levels = [(f"uniform, 1/{outcomes:,}", 1 / outcomes, "faint")]
    return Chart("certainty", "Certainty of assignments", "epoch", "probability", lines, levels, about)


def _health(runs: Sequence[RunRecords]) -> Chart | None:
    def rank(line: dict[str, Any]) -> float | None:
        return line["effective_rank"] / line["full_rank"] if line.get("full_rank") else None

    values = {"views recognised": _get("agreement"), "prototypes used": _get("prototypes_used"), "rank": rank}
    lines = _curves(runs, values)
    if not lines:
        return None
    about = (
        "How often a view is nearer to the other view of its image than to another image (chance is 50%), the share of "
        "prototypes that a batch prefers, and the effective rank of the embeddings as a share of the full one."
    )
    return Chart("health", "Health", "epoch", "share", lines, [], about, percent=True, y_range=(0, 1.02))


def _rates(runs: Sequence[RunRecords]) -> Chart | None:
    lines = _curves(runs, {"learning rate": _get("lr")})
    if not lines:
        return None
    momentum = _curves(runs, {"teacher momentum": _get("teacher_momentum")})
    traces = [{**line.as_trace(), "yaxis": "y2"} for line in momentum]
    for number, trace in enumerate(traces):
        trace["line"] = {
            "color": f"var(--{PALETTE[1 if len(runs) == 1 else number % len(PALETTE)]})",
            "width": 2,
            "dash": "dash",
        }
    layout = {
        "yaxis2": {
            "title": {"text": "momentum"},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
        }
    }
    about = "The learning rate on the left axis, the share of itself that the teacher keeps on the right one."
    return Chart("rates", "Schedules", "epoch", "learning rate", lines, [], about, traces=traces, layout=layout)


def confusion_chart(key: str, counts: NDArray[np.int64], classes: Sequence[str]) -> Chart | None:
    """The shares of each class (rows) that were taken for each class (columns); None with too many classes."""
    if len(classes) > _MOST_CLASSES:
        return None
    names = [text_for_scripts(name) for name in classes]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": shares.round(4).tolist(),
        "colorscale": [[0, "var(--card)"], [1, "var(--accent)"]],
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y} taken for %{x}: %{z:.1%}<extra></extra>",
    }
    layout = {
        "hovermode": "closest",
        "yaxis": {"autorange": "reversed", "title": {"text": "class"}, "type": "category"},
        "xaxis": {"title": {"text": "taken for"}, "type": "category", "tickangle": -45},
    }
    return Chart(key, "Confusion", "", "", traces=[trace], layout=layout, tall=True)
