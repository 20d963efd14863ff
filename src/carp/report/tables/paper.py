"""The paper's published tables, as rows to compare your own results with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from carp.errors import ConfigError, nearest
from carp.evaluation.data_names import AVERAGE
from carp.report.tables.columns import Column
from carp.report.tables.join import Cells, Row, Value
from carp.studies.ablations import find_ablation
from carp.studies.published import Published, published_ablations

_ABLATION = "ablation-"
_NOT_COMPARED = frozenset({"Supervised", "Random"})  # the paper shows them for reference and never marks them


@dataclass(frozen=True)
class Layout:
    """A table of the paper: its label in the source, title, columns in order, rows, and notes."""

    name: str
    label: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cells: Cells
    notes: tuple[str, ...]

    @property
    def evaluations(self) -> tuple[tuple[str, str], ...]:
        """The protocol and the dataset of every evaluation behind the table; averages follow from the others."""
        return tuple(dict.fromkeys((c.protocol, c.data) for c in self.columns if c.data != AVERAGE))


@cache
def layouts() -> dict[str, Layout]:
    """Return all published tables by name: of the evaluation, and of the ablations."""
    ablations = (_ablation_layout(name, table) for name, table in published_ablations().items())
    return evaluation_layouts() | {table.name: table for table in ablations}


@cache
def evaluation_layouts() -> dict[str, Layout]:
    """Return the published tables of the evaluation by name."""
    text = (resources.files("carp.report.tables") / "paper.yaml").read_text(encoding="utf-8")
    return {name: _layout(name, table) for name, table in yaml.safe_load(text).items()}


def layout(name: str, known: Mapping[str, Layout] | None = None) -> Layout:
    """Return one published table, of all or of those that are `known`."""
    known = layouts() if known is None else known
    if name not in known:
        raise ConfigError(f"'{name}' is not a layout.{nearest(name, known)} Layouts: {', '.join(known)}.")
    return known[name]


def published() -> tuple[list[Row], Cells]:
    """Return the rows and values of the evaluation, in the paper's order: references, other methods by epochs, CARP.

    Ablations are not models to compare with, so they are left out. If two tables differ, the longer table in the
    appendix is used.
    """
    rows: dict[Row, None] = {}
    cells: Cells = {}
    for table in evaluation_layouts().values():  # a long table comes after its short version
        rows.update(dict.fromkeys(table.rows))
        cells.update(table.cells)
    return sorted(rows, key=_place), cells


def averaged_over() -> tuple[str, ...]:
    """Return the datasets over which the paper averages."""
    return tuple(dict.fromkeys(column.data for column in layouts()["knn-full"].columns))


def _place(row: Row) -> tuple[bool, str, int]:
    ours = row.name if row.name.startswith("CARP") else ""
    return row.compared, ours, row.epochs or 0


def _layout(name: str, table: dict[str, Any]) -> Layout:
    columns = tuple(
        Column(group["protocol"], group["data"], metric) for group in table["columns"] for metric in group["metrics"]
    )
    rows, cells = [], {}
    for method, views, epochs, *numbers in table["rows"]:
        title = f"{method} ({views})" if views else method
        row = Row(title, epochs=epochs, published=True, compared=method not in _NOT_COMPARED)
        rows.append(row)
        for column, number in zip(columns, numbers, strict=True):
            if number is not None:
                cells[row, column] = _value(number)
    return Layout(name, table["label"], table["title"], columns, tuple(rows), cells, tuple(table.get("notes", ())))


def _ablation_layout(name: str, table: Published) -> Layout:
    """Return an ablation as a table: one row per value, variant and branch, or per length of training."""
    ablation, column = find_ablation(name), Column("knn", "imagenet", "top1_k20")
    cells: Cells = {}
    for series in table.series:
        for value, number in series.values.items():
            if ablation.key == "epochs":
                row = Row(series.variant or series.branch, epochs=int(value), published=True)
            else:
                row = Row(", ".join(filter(None, (f"{ablation.axis} {value}", series.variant))), published=True)
            cells[row, column] = Value(number, decimals=2)
    rows = tuple(row for row, _ in cells)
    return Layout(f"{_ABLATION}{name}", table.label, ablation.title, (column,), rows, cells, table.notes)


def _value(number: float | str) -> Value:
    mean, _, deviation = str(number).partition(" ± ")
    return Value(float(mean), float(deviation) if deviation else None)
