"""`carp table`: the results of several models in one table, optionally next to the paper's numbers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.result import read_result
from carp.files.atomic import is_unfinished, write_atomic
from carp.files.outputs import check_output_file
from carp.report.tables.columns import Column, headline_columns, in_order
from carp.report.tables.join import Cells, Row, Source, Table, join, with_averages
from carp.report.tables.paper import Layout, averaged_over, layouts, published
from carp.report.tables.paper import layout as layout_of
from carp.report.tables.render import table_text
from carp.report.tables.table_image import draw_table

Format = Literal["screen", "md", "csv", "latex", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[str, Format] = {".md": "md", ".csv": "csv", ".tex": "latex", ".png": "png"}


def table(
    results: str | Path | Sequence[str | Path] = (),
    *,
    with_paper: bool = False,
    layout: str | None = None,
    all: bool = False,  # noqa: A002 - the name of the option
    format: str | None = None,
    out: str | Path | None = None,
) -> Table:
    """Put results into one table, and write it to a file if `out` is given.

    Args:
        results: Result files, or folders that hold them: a run, or its `results`.
        with_paper: Also show the rows that the paper published.
        layout: Show the columns of this table of the paper, such as `knn`. None shows those of the results.
        all: Show all values of the results, not only those that the paper's tables show.
        format: Of the file: `md`, `csv`, `latex` or `png`. None follows from its suffix.
        out: The file to write.

    Returns:
        The table, with its notes; `table_text(table, "md")` of `carp.report.tables.render` gives its text.
    """
    file = None if out is None else Path(out)
    written_as = format if format is not None or file is None else _format_of(file)
    if written_as is not None and written_as not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"there is no format '{written_as}'.{nearest(written_as, FORMATS)} Formats: {known}.")
    if file is None and format == "png":
        raise ConfigError("a PNG needs a file: add --out table.png.")
    if file is not None:
        check_output_file(file)
    places = [results] if isinstance(results, str | Path) else results
    made = _join(places, layout, with_paper=with_paper, everything=all)
    if file is not None and written_as is not None:
        _write(made, written_as, file)
    return made


def _write(table: Table, format: str, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "png":
            draw_table(table, out)
        else:
            write_atomic(out, table_text(table, "md" if format == "screen" else format))
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}. Give another file with --out.") from None


def _join(results: Sequence[str | Path], layout_name: str | None, *, with_paper: bool, everything: bool) -> Table:
    wanted = layout_of(layout_name) if layout_name else None
    if not results and not (wanted and with_paper):
        raise ConfigError("no results were given. Give result files or run folders, or --layout NAME --with-paper.")
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
    return Table(tuple(columns), (*theirs, *rows), cells, title, tuple(notes))


def _format_of(out: Path) -> Format:
    if out.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--out {out} has no known suffix. End it with {', '.join(_SUFFIXES)}, or add --format.")
    return _SUFFIXES[out.suffix.lower()]


def _sources(place: Path) -> list[Source]:
    """The results of a file, a run folder or a folder of results."""
    if not place.exists():
        raise DataError(f"there is no file or folder {place}. Give result files (RUN/results/*.json) or run folders.")
    if place.is_file():
        return [_source(place)]
    folder = place / "results" if (place / "results").is_dir() else place
    files = sorted(path for path in folder.glob("*.json") if not is_unfinished(path))
    if not files:
        raise DataError(f"there are no result files in {folder}. Run `carp eval` first, or give the files themselves.")
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
        return "the result files contain no values. Run `carp eval` again."
    return (
        f"the results have none of the columns of the layout '{wanted.name}' ({_measures(wanted.cells)}); "
        f"they have {_measures(cells) or 'no values'}."
    )


def _nothing_published(cells: Cells) -> str:
    known = _measures({cell: value for table in layouts().values() for cell, value in table.cells.items()})
    return f"the paper has no numbers for {_measures(cells)}, only for {known}. Leave out --with-paper."
