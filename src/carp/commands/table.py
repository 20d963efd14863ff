"""`carp table`: the results of several models beside each other, and beside the paper's."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.result import read_result
from carp.files.atomic import is_unfinished, write_atomic
from carp.report.tables.columns import Column, headline_columns, in_order
from carp.report.tables.join import Cells, Row, Source, Table, join, with_averages
from carp.report.tables.paper import Layout, averaged_over, layout, layouts, published
from carp.report.tables.render import to_csv, to_latex, to_markdown, to_screen
from carp.report.tables.table_image import draw_table

Format = Literal["screen", "md", "csv", "latex", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[str, Format] = {".md": "md", ".csv": "csv", ".tex": "latex", ".png": "png"}


def make_table(
    *,
    results: Sequence[str | Path],
    paper_layout: str | None = None,
    with_paper: bool = False,
    everything: bool = False,
) -> tuple[Table, list[str]]:
    """Join results into one table.

    Args:
        results: Result files, or folders that hold them: a run, or its `results`.
        paper_layout: Show the columns of this table of the paper; otherwise those of the results.
        with_paper: Also the paper's published rows.
        everything: All values of the results, not only those that the paper's tables show.

    Returns:
        The table, and notes for its reader.
    """
    if not results and not (paper_layout and with_paper):
        raise ConfigError("no results were given: give result files or run folders, or --layout NAME --with-paper.")
    wanted = layout(paper_layout) if paper_layout else None
    rows, cells, notes = join([source for place in results for source in _sources(Path(place))])
    if wanted:
        cells = with_averages(cells, rows, wanted.columns, averaged_over())
        notes += [f"about the paper's table: {note}" for note in wanted.notes if with_paper]
    elif not everything:
        kept = set(headline_columns(in_order({column for _, column in cells})))
        cells = {cell: value for cell, value in cells.items() if cell[1] in kept}
    columns = list(wanted.columns) if wanted else in_order({column for _, column in cells})
    rows = _with_values(rows, cells, set(columns))
    if results and not rows:
        raise DataError(_nothing_for(wanted, cells))
    if len(rows) > 1 and not with_paper and all(_count(rows, cells, column) < 2 for column in columns):
        notes.append("no two models have a result in the same column: nothing is compared.")
    theirs: list[Row] = []
    if with_paper:
        their_rows, their_cells = (list(wanted.rows), wanted.cells) if wanted else published()
        theirs = _with_values(their_rows, their_cells, set(columns))
        if not theirs:
            raise DataError(_nothing_published(cells))
        cells = {**their_cells, **cells}
    title = wanted.title if wanted else ""
    return Table(tuple(columns), (*theirs, *rows), cells, title), notes


def write_table(table: Table, *, format: str | None = None, out: Path | None = None) -> None:
    """Print a table, or write it to a file, whose suffix decides on the form where none is given."""
    format = format or ("screen" if out is None else _form_of(out))
    if format not in FORMATS:
        raise ConfigError(f"there is no format '{format}'.{nearest(format, FORMATS)} Formats: {', '.join(FORMATS)}.")
    if out is None:
        if format == "png":
            raise ConfigError("a PNG needs a file: add --out table.png.")
        if format == "screen":
            to_screen(table)
        else:
            sys.stdout.write(_text(table, format))
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "png":
            draw_table(table, out)
        else:
            write_atomic(out, _text(table, "md" if format == "screen" else format))
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}.") from None


def _text(table: Table, format: str) -> str:
    return {"md": to_markdown, "csv": to_csv, "latex": to_latex}[format](table)


def _form_of(out: Path) -> Format:
    if out.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--out {out} does not say its format: end it with {', '.join(_SUFFIXES)}, or add --format.")
    return _SUFFIXES[out.suffix.lower()]


def _sources(place: Path) -> list[Source]:
    """The results of a file, a run folder or a folder of results."""
    if not place.exists():
        raise DataError(f"there is no file or folder {place}: give result files (RUN/results/*.json) or run folders.")
    if place.is_file():
        return [_source(place)]
    folder = place / "results" if (place / "results").is_dir() else place
    files = sorted(path for path in folder.glob("*.json") if not is_unfinished(path))
    if not files:
        raise DataError(f"there are no result files in {folder}: run `carp eval` first, or give the files themselves.")
    return [_source(path) for path in files]


def _source(path: Path) -> Source:
    result = read_result(path)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="microseconds")
    return Source(result, str(path), result.created or written)


def _with_values(rows: Sequence[Row], cells: Cells, columns: set[Column]) -> list[Row]:
    having = {row for row, column in cells if column in columns}
    return [row for row in rows if row in having]


def _count(rows: Sequence[Row], cells: Cells, column: Column) -> int:
    return sum((row, column) in cells for row in rows)


def _measures(cells: Cells) -> str:
    return ", ".join(dict.fromkeys(f"{column.protocol} on {column.data}" for column in in_order({c for _, c in cells})))


def _nothing_for(wanted: Layout | None, cells: Cells) -> str:
    if wanted is None:
        return "the result files hold no values: run `carp eval` again."
    return (
        f"the results have none of the columns of the layout '{wanted.name}' ({_measures(wanted.cells)}); "
        f"they have {_measures(cells) or 'no values'}."
    )


def _nothing_published(cells: Cells) -> str:
    known = _measures({cell: value for table in layouts().values() for cell, value in table.cells.items()})
    return f"the paper has nothing for {_measures(cells)}: leave out --with-paper. It has {known}."
