"""Plots of a run: loss terms and their limits, k-NN and its baselines, the verdict."""

import math
import textwrap
from pathlib import Path
from typing import Any

from carp.config import HeadSettings
from carp.report.figures.canvas import BRANCHES, GREY, STUDENT, TEACHER, new_figure, save_figure, tidy

_GOOD, _WARNING, _BAD = "#2a7a2a", "#a86400", "#b02020"
_COLOURS = {"healthy": _GOOD, "collapsed": _BAD, "not learning": _BAD, "worse than the start": _BAD}
_BASELINES = {
    "knn_raw_pixels": ("raw pixels", "--"),
    "knn_untrained": ("untrained encoder", ":"),
    "knn_start": ("start", ":"),
    "label_free_start": ("start", ":"),
}
_BEFORE = ("knn_untrained", "knn_start", "label_free_start")  # the encoder before its first step


def plot_run(metrics: list[dict[str, Any]], config: HeadSettings, path: Path) -> None:
    """Draw the metrics of a run as a PNG."""
    losses = [m for m in metrics if "loss" in m]
    measured = [m for m in metrics if {"knn_student", "label_free_student", "label_free_teacher"} & m.keys()]
    figure = new_figure(11 if measured else 6, 4.4)
    axes = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    _draw_losses(axes[0], losses, config)
    if measured:
        _draw_validation(axes[1], measured, _baselines(metrics))
    if verdicts := [m for m in metrics if "cause" in m]:
        _write_verdict(figure, verdicts[-1], width=130 if measured else 70)
    save_figure(figure, path)


def _draw_losses(axis: Any, losses: list[dict[str, Any]], config: HeadSettings) -> None:
    steps = [m["step"] for m in losses]
    limit = math.log(max(2, config.block_size))
    axis.plot(steps, [m["consistency"] for m in losses], color=STUDENT, label="consistency")
    axis.plot(steps, [m["kl_to_uniform"] for m in losses], color=TEACHER, label="kl_to_uniform")
    koleo = [(m["step"], m["koleo"]) for m in losses if "koleo" in m]
    if koleo:
        axis.plot(*zip(*koleo, strict=True), color=GREY, label="koleo")
    axis.axhline(2 * limit, color=STUDENT, ls=":", lw=1, label="uniform assignments (2 ln $N_B$)")
    axis.axhline(limit, color=TEACHER, ls=":", lw=1, label="one prototype takes all (ln $N_B$)")
    lowest = min([0.0, *(1.2 * value for _, value in koleo)])
    axis.set(xlabel="step", ylabel="nats", title="Loss terms and their limits", ylim=(lowest, 2.3 * limit))
    axis.legend(fontsize=8, frameon=False)
    tidy(axis)


def _baselines(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """Return the baselines, measured before training; runs of older versions have none."""
    first = next((m for m in metrics if any(name in m for name in _BEFORE)), {})
    return {name: first[name] for name in _BASELINES if name in first}


def _draw_validation(axis: Any, measured: list[dict[str, Any]], baselines: dict[str, float]) -> None:
    """Draw k-NN, or what a run without labels is compared with its start by."""
    with_labels = "knn_student" in measured[-1]
    epochs = [m["epoch"] for m in measured]
    start = next((baselines[name] for name in _BEFORE if name in baselines), None)
    for branch, (label, colour, marker) in BRANCHES.items():
        if (name := f"{'knn' if with_labels else 'label_free'}_{branch}") in measured[-1]:
            values = [100 * m[name] for m in measured]
            if start is not None:  # both start as the same encoder
                axis.plot([0, epochs[0]], [100 * start, values[0]], color=colour, lw=1, alpha=0.5)
            axis.plot(epochs, values, color=colour, marker=marker, ms=4, label=label)
    for name, value in baselines.items():
        label, style = _BASELINES[name]
        axis.axhline(100 * value, color=GREY, ls=style, lw=1.3, label=f"{label}, {value:.1%}", zorder=1)
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)  # there is no epoch 2.5
    title = "k-NN and its baselines" if with_labels else "Views of held-out images, and the start"
    axis.set(xlabel="epoch", ylabel="k-NN top-1 accuracy, %" if with_labels else "recognised, %", title=title)
    axis.legend(fontsize=8, frameon=False)
    tidy(axis)


def _write_verdict(figure: Any, line: dict[str, Any], *, width: int) -> None:
    """Write the last verdict and its cause above the panels."""
    text = textwrap.fill(f"{line['health']}: {line['cause']}", width)
    figure.suptitle(text, fontsize=10, color=_COLOURS.get(line["health"], _WARNING))
