"""`carp table`: the results of several models in one table, optionally next to the paper's numbers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.result import read_result
from carp.files.atomic import is_unfinished, write_atomic
from carp.files.outputs import check_output_file
from carp.report.tables.compose import compose
from carp.report.tables.join import Source, Table
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
    difference: bool = False,
    layout: str | None = None,
    all: bool = False,  # noqa: A002 - the name of the option
    format: str | None = None,
    out: str | Path | None = None,
) -> Table:
    """Put results into one table, and write it to a file if `out` is given.

    Args:
        results: Result files, or folders that hold them: a run, or its `results`.
        with_paper: Also show the rows published in the paper.
        difference: Also show how far every model is from the published rows of CARP.
        layout: Show the columns of this table of the paper, such as `knn`. None shows those of the results.
        all: Show all values of the results, not only those that the paper's tables show.
        format: Format of the file: `md`, `csv`, `latex` or `png`. None infers it from the suffix.
        out: The output file.

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
    sources = [source for place in places for source in _sources(Path(place))]
    wanted = layout_of(layout) if layout else None
    made = compose(sources, wanted, with_paper=with_paper, difference=difference, everything=all)
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


def _format_of(out: Path) -> Format:
    if out.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--out {out} has no known suffix. End it with {', '.join(_SUFFIXES)}, or add --format.")
    return _SUFFIXES[out.suffix.lower()]


def _sources(place: Path) -> list[Source]:
    """Return the results of a file, a run folder or a folder of results."""
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
