"""Composes a table from results: its columns, the rows of the results, the published rows, and differences."""

from collections.abc import Sequence
from dataclasses import replace

from carp.errors import ConfigError, DataError
from carp.report.tables.columns import Column, headline_columns, in_order
from carp.report.tables.differences import with_differences
from carp.report.tables.join import Cells, Row, Source, Table, join, with_averages
from carp.report.tables.paper import Layout, averaged_over, layouts, published


def compose(
    sources: Sequence[Source],
    wanted: Layout | None,
    *,
    with_paper: bool = False,
    difference: bool = False,
    everything: bool = False,
) -> Table:
    """Put results into one table.

    Args:
        sources: The results, and where they come from.
        wanted: The table of the paper whose columns are shown; None shows those of the results.
        with_paper: Also show the published rows.
        difference: Also show how far the results are from the published rows of CARP.
        everything: Show all values, not only those that the paper's tables show.
    """
    if not sources and not (wanted and with_paper):
        raise ConfigError("no results were given. Give result files or run folders, or --layout NAME --with-paper.")
    rows, cells, notes = join(sources)
    if wanted:
        cells = with_averages(cells, rows, wanted.columns, averaged_over())
        notes += [f"about the paper's table: {note}" for note in wanted.notes if with_paper]
    elif not everything:
        kept = set(headline_columns(in_order({column for _, column in cells})))
        cells = {cell: value for cell, value in cells.items() if cell[1] in kept}
    columns = list(wanted.columns) if wanted else in_order({column for _, column in cells})
    rows = _with_values(rows, cells, set(columns))
    if sources and not rows:
        raise DataError(_nothing_for(wanted, cells))
    if len(rows) > 1 and not with_paper and all(_count(rows, cells, column) < 2 for column in columns):
        notes.append("no two models have a result in the same column: nothing is compared.")
    theirs: list[Row] = []
    if with_paper or difference:
        their_rows, their_cells = (list(wanted.rows), wanted.cells) if wanted else published()
        theirs = _with_values(their_rows, their_cells, set(columns))
        if not theirs:
            raise DataError(_nothing_published(cells))
        if difference:
            rows, cells = with_differences(rows, cells, theirs, their_cells, columns)
        cells = {**their_cells, **cells}
    title = wanted.title if wanted else ""
    return Table(tuple(columns), (*(theirs if with_paper else ()), *rows), cells, title, tuple(notes))


def only_measured(table: Table) -> Table:
    """Leave out the columns in which only published rows have values, and the rows that are then empty."""
    own = {row for row in table.rows if not row.published}
    columns = tuple(column for column in table.columns if any((row, column) in table.cells for row in own))
    return replace(table, columns=columns, rows=tuple(_with_values(table.rows, table.cells, set(columns))))


def _with_values(rows: Sequence[Row], cells: Cells, columns: set[Column]) -> list[Row]:
    having = {row for row, column in cells if column in columns}
    return [row for row in rows if row in having]


def _count(rows: Sequence[Row], cells: Cells, column: Column) -> int:
    return sum((row, column) in cells for row in rows)


def _measures(cells: Cells) -> str:
    return ", ".join(dict.fromkeys(f"{column.protocol} on {column.data}" for column in in_order({c for _, c in cells})))


def _nothing_for(wanted: Layout | None, cells: Cells) -> str:
    if wanted is None:
        return "the result files contain no values. Run `carp eval` again."
    return (
        f"the results have none of the columns of the layout '{wanted.name}' ({_measures(wanted.cells)}); "
        f"they have {_measures(cells) or 'no values'}."
    )


def _nothing_published(cells: Cells) -> str:
    known = _measures({cell: value for table in layouts().values() for cell, value in table.cells.items()})
    remedy = "Leave out --with-paper and --difference."
    return f"the paper has no numbers for {_measures(cells)}, only for {known}. {remedy}"
