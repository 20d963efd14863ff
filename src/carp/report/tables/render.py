"""Renders a table as text: terminal, Markdown, CSV, LaTeX."""

import csv
import io
import re
from dataclasses import replace
from itertools import groupby

from rich.table import Table as ScreenTable
from rich.text import Text

from carp.report.tables.columns import Column, headings
from carp.report.tables.join import Row, Table, shown
from carp.report.tables.screen import print_in_parts

MODEL, EPOCHS = "model", "epochs"
_MISSING = "–"


def leading(table: Table) -> list[str]:
    """Return the headings before the values; epochs only if a row has them."""
    return [MODEL, EPOCHS] if any(row.epochs is not None for row in table.rows) else [MODEL]


def lead_cells(table: Table, row: Row) -> list[str]:
    """Return the cells of a row before the values."""
    epochs = "" if row.epochs is None else str(row.epochs)
    return [row.name, epochs][: len(leading(table))]


def cell_text(table: Table, row: Row, column: Column) -> str:
    """Return a value as it is shown, or a dash."""
    value = table.cells.get((row, column))
    return _MISSING if value is None else shown(value, column)


def title_of(table: Table) -> str:
    """Return the title of a table, what all its columns have in common, and the unit."""
    common = [part for part in headings(list(table.columns)).title.split(", ") if part not in table.title]
    unit = ["%"] if any(column.is_share for column in table.columns) else []
    words = [part for part in (table.title, *common) if part] or ["Results"]
    return ", ".join(words + unit)


def one_line_headings(table: Table) -> list[str]:
    """Return one heading per column, for formats with a single line of headings."""
    above = headings(list(table.columns))
    pairs = zip(above.groups, above.names, strict=True)
    return [" ".join(part for part in pair if part) or above.title for pair in pairs]


def spans(table: Table) -> list[tuple[str, int]]:
    """Return the groups of adjacent columns and their widths."""
    return [(name, len(list(group))) for name, group in groupby(headings(list(table.columns)).groups)]


def to_markdown(table: Table) -> str:
    """Render as GitHub Markdown, which has no underline of its own."""
    head = [*leading(table), *one_line_headings(table)]
    lines = [
        f"**{title_of(table)}**",
        "",
        _bar(head),
        _bar(["---"] * len(leading(table)) + ["---:"] * len(table.columns)),
    ]
    for row in table.rows:
        values = [_marked(table, row, column, "**{}**", "<u>{}</u>") for column in table.columns]
        lines.append(_bar([*lead_cells(table, row), *values]))
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Render as CSV, in percent with full precision; a standard deviation has its own column."""
    deviating = {column for (_, column), value in table.cells.items() if value.deviation is not None}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = [*leading(table)]
    for column in table.columns:
        head += [str(column), f"{column} deviation"] if column in deviating else [str(column)]
    writer.writerow(head)
    for row in table.rows:
        line: list[object] = [*lead_cells(table, row)]
        for column in table.columns:
            value = table.cells.get((row, column))
            line.append("" if value is None else f"{value.mean:.10g}")
            if column in deviating:
                line.append("" if value is None or value.deviation is None else f"{value.deviation:.10g}")
        writer.writerow(line)
    return text.getvalue()


def to_latex(table: Table) -> str:
    """Render as a LaTeX tabular with booktabs, in the style of the paper's tables."""
    above, lead = headings(list(table.columns)), leading(table)
    lines = [rf"% {title_of(table)}; needs \usepackage{{booktabs}}".replace("–", "--")]
    lines += [rf"\begin{{tabular}}{{{'l' * len(lead)}{'r' * len(table.columns)}}}", r"\toprule"]
    if any(above.groups) and any(above.names):
        groups = [rf"\multicolumn{{{width}}}{{c}}{{{_latex(name)}}}" for name, width in spans(table)]
        lines += [_row([*[""] * len(lead), *groups]), _rules(table, len(lead))]
        lines.append(_row([*lead, *(_latex(name) for name in above.names)]))
    else:
        lines.append(_row([*lead, *(_latex(name) for name in one_line_headings(table))]))
    lines.append(r"\midrule")
    for before, row in zip((None, *table.rows), table.rows, strict=False):
        if before is not None and before.published != row.published:
            lines.append(r"\midrule")
        values = [_marked(table, row, column, r"\textbf{{{}}}", r"\underline{{{}}}") for column in table.columns]
        values = [value.replace("±", r"$\pm$").replace(_MISSING, "--") for value in values]
        lines.append(_row([*(_latex(cell) for cell in lead_cells(table, row)), *values]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def table_text(table: Table, format: str) -> str:
    """Return the table as `md`, `csv` or `latex`."""
    return {"md": to_markdown, "csv": to_csv, "latex": to_latex}[format](table)


def to_screen(table: Table) -> None:
    """Print to standard output; on a narrow terminal, as several tables below each other."""
    print_in_parts(table.columns, lambda columns: _screen(replace(table, columns=tuple(columns))))


def _screen(table: Table) -> ScreenTable:
    screen = ScreenTable(title=Text(title_of(table), style="italic"), title_justify="left")
    for name in leading(table):
        screen.add_column(name, justify="right" if name == EPOCHS else "left", no_wrap=name == EPOCHS, overflow="fold")
    above = headings(list(table.columns))
    for group, name in zip(above.groups, above.names, strict=True):
        lines = [part for part in (group, name) if part]
        screen.add_column(Text("\n".join(lines) or above.title), justify="right", no_wrap=True)
    for row, after in zip(table.rows, (*table.rows[1:], None), strict=True):
        values = [Text(cell_text(table, row, column), style=_style(table, row, column)) for column in table.columns]
        ends = after is not None and after.published != row.published
        screen.add_row(*(Text(cell) for cell in lead_cells(table, row)), *values, end_section=ends)
    return screen


def _style(table: Table, row: Row, column: Column) -> str:
    return "bold" if (row, column) in table.best else "underline" if (row, column) in table.second else ""


def _marked(table: Table, row: Row, column: Column, best: str, second: str) -> str:
    text = cell_text(table, row, column)
    style = _style(table, row, column)
    return best.format(text) if style == "bold" else second.format(text) if style else text


def _bar(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _rules(table: Table, lead: int) -> str:
    """Return a rule below every group."""
    rules, start = [], lead + 1
    for _, width in spans(table):
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return "".join(rules)


def _latex(text: str) -> str:
    """Escape LaTeX's special characters."""
    text = text.replace("\\", r"\textbackslash ")
    text = re.sub(r"([#$%&_{}])", r"\\\1", text).replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
    return text.replace("−", "$-$")
