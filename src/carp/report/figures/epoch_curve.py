"""The quality of the student and the teacher of a run after every kept epoch: a table and a figure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.evaluation.data_names import FILE_UNSAFE, name_of_data, title_of_data, without_mark
from carp.evaluation.result import Result
from carp.report.figures.canvas import BRANCHES, FAINT, GREY, new_figure, save_figure, tidy
from carp.report.tables.columns import Column, column_of, headline_columns, in_order, protocol_title
from carp.report.tables.join import column_name
from carp.report.tables.screen import print_in_parts

_PANELS_IN_A_ROW = 3
_STYLES = ("--", ":", "-.")


@dataclass(frozen=True)
class EpochCurve:
    """One measure of a run by epoch, as fractions."""

    run: str
    column: Column
    values: dict[str, dict[int, float]]
    """The values by branch, then by epoch."""
    baselines: dict[str, float]
    """Values that do not depend on the epoch, such as those of raw pixels."""

    @property
    def epochs(self) -> list[int]:
        """All epochs, in order."""
        return sorted({epoch for values in self.values.values() for epoch in values})

    @property
    def title(self) -> str:
        """Protocol and data."""
        return f"{protocol_title(self.column.protocol)}, {title_of_data(self.column.data)}"

    @property
    def measure(self) -> str:
        """The name of the values."""
        return ", ".join(self.column.words)


def epoch_curves(results: Sequence[Result]) -> list[EpochCurve]:
    """Collect results of `RUN@EPOCH` into one curve per measure in the paper's tables; the latest result counts."""
    found: dict[tuple[str, Column], tuple[dict[str, dict[int, float]], dict[str, float]]] = {}
    for result in sorted(results, key=lambda result: result.created):
        run, branch = str(result.model.get("name", "")), str(result.model.get("branch", ""))
        epoch = result.model.get("epoch")
        for name, value in result.values.items():
            column = column_of(result.protocol, name_of_data(result.data), column_name(result, name))
            if not column.is_share:
                continue
            values, baselines = found.setdefault((run, column), ({}, {}))
            if isinstance(epoch, int):
                values.setdefault(branch, {})[epoch] = value
            elif branch not in BRANCHES:
                baselines[branch] = value
    shown = set(headline_columns([column for _, column in found]))
    curves = [EpochCurve(run, column, *parts) for (run, column), parts in found.items() if column in shown and parts[0]]
    order = in_order({curve.column for curve in curves})
    return sorted(curves, key=lambda curve: (curve.run, order.index(curve.column)))


def epochs_file(results: Sequence[Result]) -> str:
    """Return the name of the figure of these results: their protocols and their data."""
    words = [*(result.protocol for result in results), *(without_mark(name_of_data(result.data)) for result in results)]
    return f"epochs-{'-'.join(dict.fromkeys(re.sub(FILE_UNSAFE, '_', word) for word in words))}.png"


def print_epoch_table(curves: Sequence[EpochCurve]) -> None:
    """Print one row per epoch and one column per measure and branch, in percent."""
    columns = [(curve, branch) for curve in curves for branch in (*curve.values, *curve.baselines)]
    epochs = sorted({epoch for curve in curves for epoch in curve.epochs})

    def draw(some: Sequence[tuple[EpochCurve, str]]) -> Table:
        titles = list(dict.fromkeys(f"{curve.title}, {curve.measure}" for curve, _ in some))
        heading = f"{titles[0]}, %" if len(titles) == 1 else "%"
        table = Table(title=Text(printable(heading), style="italic"), title_justify="left")
        table.add_column("epoch", justify="right")
        for curve, branch in some:
            above = "" if len(titles) == 1 else f"{curve.title}, {curve.measure}\n"
            table.add_column(Text(printable(above + branch)), justify="right", no_wrap=True)
        for epoch in epochs:
            cells = [curve.values.get(branch, {}).get(epoch, curve.baselines.get(branch)) for curve, branch in some]
            table.add_row(str(epoch), *("–" if value is None else f"{100 * value:.1f}" for value in cells))
        return table

    print_in_parts(columns, draw)


def write_epoch_curves(curves: Sequence[EpochCurve], path: Path) -> None:
    """Write the curves as a PNG."""
    figure = new_figure(*size_of_curves(curves))
    draw_epoch_curves(figure, curves)
    save_figure(figure, path)


def size_of_curves(curves: Sequence[EpochCurve]) -> tuple[float, float]:
    """Return the width and height of the panels in inches."""
    across = min(len(curves), _PANELS_IN_A_ROW)
    return 5.4 * across, 4.2 * -(-len(curves) // across)


def draw_epoch_curves(panel: Any, curves: Sequence[EpochCurve]) -> None:
    """Draw one measure after the other on a figure or a part of one."""
    across = min(len(curves), _PANELS_IN_A_ROW)
    axes = list(panel.subplots(-(-len(curves) // across), across, squeeze=False).flat)
    for axis, curve in zip(axes, curves, strict=False):
        draw_epoch_curve(axis, curve)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)


def draw_epoch_curve(axis: Any, curve: EpochCurve) -> None:
    """Draw the lines of student and teacher, and level lines for baselines, on one axis."""
    for branch, values in curve.values.items():
        label, colour, marker = BRANCHES.get(branch, (branch, GREY, "^"))
        epochs = sorted(values)
        axis.plot(epochs, [100 * values[e] for e in epochs], color=colour, marker=marker, ms=5, label=label)
    for style, (name, value) in zip(_STYLES, curve.baselines.items(), strict=False):
        axis.axhline(100 * value, color=FAINT, ls=style, lw=1.3, label=f"{name}, {value:.1%}", zorder=1)
    axis.set_xticks(curve.epochs) if len(curve.epochs) <= 10 else axis.locator_params(axis="x", integer=True)
    axis.set(xlabel="training epochs", ylabel=f"{curve.measure}, %", title=curve.title)
    axis.legend(fontsize=8, frameon=False)
    tidy(axis)
