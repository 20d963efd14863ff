"""Draws a table as an image."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from carp.errors import MissingExtraError
from carp.files.atomic import replacing
from carp.report.tables.columns import Column, headings
from carp.report.tables.join import Row, Table
from carp.report.tables.render import cell_text, lead_cells, leading, one_line_headings, spans, title_of

_LINE = 0.27  # inches
_LETTER = 0.085
_PAD = 0.22
_WIDEST = 11.0  # a page


def draw_table(table: Table, path: Path) -> None:
    """Draw a table as a PNG with horizontal rules; the best values are bold, the second-best underlined.

    A table wider than a page is split into several below each other.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError("matplotlib is not installed. Run `pip install 'carp-ssl[log]'`.") from None
    parts = [(part, _widths(part)) for part in _parts(table)]
    lines = sum(_lines(part) for part, _ in parts) + len(parts) - 1
    width, height = max(sum(widths) for _, widths in parts) + 2 * _PAD, (lines + 0.6) * _LINE + 2 * _PAD
    figure = Figure(figsize=(width, height), facecolor="white")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(-_PAD, width - _PAD), ylim=(-height + _PAD, _PAD))  # one unit is one inch
    axis.axis("off")
    top = 0
    for part, widths in parts:
        _draw_heads(axis, part, widths, top)
        _draw_rows(axis, part, widths, top + _head_lines(part))
        top += _lines(part) + 1
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=160, format="png")


def _parts(table: Table) -> list[Table]:
    """Split a table into tables no wider than a page; a single column is kept, however wide it is."""
    parts, columns = list[Table](), table.columns
    while columns:
        tried = (replace(table, columns=columns[:n]) for n in range(len(columns), 0, -1))
        part = next(t for t in tried if len(t.columns) == 1 or sum(_widths(t)) <= _WIDEST)
        parts.append(replace(table, columns=columns[: _whole_groups(columns, len(part.columns))]))
        columns = columns[len(parts[-1].columns) :]
    return parts


def _whole_groups(columns: Sequence[Column], count: int) -> int:
    """Return how many of the first `count` columns to keep so that no group of columns is split, if possible."""
    groups = [(column.protocol, column.data) for column in columns]
    if count == len(columns):
        return count
    return next((n for n in range(count, 0, -1) if groups[n - 1] != groups[n]), count)


def _has_groups(table: Table) -> bool:
    above = headings(list(table.columns))
    return any(above.groups) and any(above.names)


def _head_lines(table: Table) -> int:
    """Return the number of lines of the title and the headings."""
    return 2 + _has_groups(table)


def _lines(table: Table) -> int:
    return _head_lines(table) + len(table.rows)


def _widths(table: Table) -> list[float]:
    """Return the width of every column in inches, by its longest text; a wide group heading widens its columns."""
    above = headings(list(table.columns))
    names = above.names if _has_groups(table) else one_line_headings(table)
    texts = [[name] for name in (*leading(table), *names)]
    for row in table.rows:
        cells = (*lead_cells(table, row), *(cell_text(table, row, column) for column in table.columns))
        for column, cell in zip(texts, cells, strict=True):
            column.append(cell)
    widths = [max(len(text) for text in column) * _LETTER + _PAD for column in texts]
    at = len(leading(table))
    for group, span in spans(table):
        missing = len(group) * _LETTER + _PAD - sum(widths[at : at + span])
        for i in range(at, at + span):
            widths[i] += max(0.0, missing / span)
        at += span
    return widths


def _edges(widths: list[float]) -> list[float]:
    """Return the left edges of the columns and the right edge of the last one."""
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width)
    return edges


def _draw_heads(axis: Any, table: Table, widths: list[float], top: int) -> None:
    edges, lead, two_lines = _edges(widths), len(leading(table)), _has_groups(table)
    axis.text(0, -(top + 0.5) * _LINE, title_of(table), fontsize=10, weight="bold", va="center", parse_math=False)
    _rule(axis, edges[0], edges[-1], top + 1, 1.2)
    names = list(headings(list(table.columns)).names) if two_lines else one_line_headings(table)
    if two_lines:
        at = lead
        for group, span in spans(table):
            middle = (edges[at] + edges[at + span]) / 2
            axis.text(middle, -(top + 1.5) * _LINE, group, fontsize=9, ha="center", va="center", parse_math=False)
            _rule(axis, edges[at] + 0.08, edges[at + span] - 0.04, top + 2, 0.5)
            at += span
    for i, name in enumerate([*leading(table), *names]):
        _write(axis, name, edges, i, top + 1 + two_lines)
    _rule(axis, edges[0], edges[-1], top + 2 + two_lines, 0.7)


def _draw_rows(axis: Any, table: Table, widths: list[float], first: int) -> None:
    edges = _edges(widths)
    before: Row | None = None
    for line, row in enumerate(table.rows, start=first):
        if before is not None and before.published != row.published:
            _rule(axis, edges[0], edges[-1], line, 0.7)
        before = row
        lead = lead_cells(table, row)
        for i, text in enumerate(lead):
            _write(axis, text, edges, i, line)
        for i, column in enumerate(table.columns, start=len(lead)):
            _write_value(axis, table, row, column, edges, i, line)
    _rule(axis, edges[0], edges[-1], first + len(table.rows), 1.2)


def _write_value(axis: Any, table: Table, row: Row, column: Column, edges: list[float], i: int, line: int) -> None:
    text = cell_text(table, row, column)
    _write(axis, text, edges, i, line, bold=(row, column) in table.best)
    if (row, column) in table.second:
        right = edges[i + 1] - 0.06
        axis.plot([right - 0.072 * len(text), right], [-(line + 0.82) * _LINE] * 2, color="black", lw=0.7)


def _write(axis: Any, text: str, edges: list[float], i: int, line: int, *, bold: bool = False) -> None:
    """Write text in a column; the first column is left-aligned, the others right-aligned."""
    x, align = (edges[0], "left") if i == 0 else (edges[i + 1] - 0.06, "right")
    y, weight = -(line + 0.5) * _LINE, "bold" if bold else "normal"
    axis.text(x, y, text, fontsize=9, ha=align, va="center", weight=weight, parse_math=False)


def _rule(axis: Any, left: float, right: float, line: float, width: float) -> None:
    axis.plot([left, right], [-line * _LINE] * 2, color="black", lw=width, solid_capstyle="butt")
