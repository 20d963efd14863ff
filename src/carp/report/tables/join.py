"""Joins the result files of several models in one table, with one row per model and one column per measure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from carp.evaluation.data_names import AVERAGE, distinct_names, is_published_name, name_of_data
from carp.evaluation.protocols import protocol_of_result
from carp.evaluation.result import Result
from carp.report.tables.columns import Column, column_of


@dataclass(frozen=True)
class Row:
    """A model. `key` distinguishes models of the same name and is shown only for those."""

    name: str
    epochs: int | None = None
    published: bool = False
    compared: bool = True
    key: str = ""


@dataclass(frozen=True)
class Value:
    """A number as it is shown (a percentage or a count), its standard deviation, and its decimals."""

    mean: float
    deviation: float | None = None
    decimals: int = 1
    is_difference: bool = False


_FEW = 3  # notes of one kind
Cells = dict[tuple[Row, Column], Value]


@dataclass(frozen=True)
class Table:
    """A table to show; `best` and `second` are the marked cells of every column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cells: Cells
    title: str = ""
    notes: tuple[str, ...] = ()
    """Remarks on the table."""
    best: frozenset[tuple[Row, Column]] = field(init=False)
    second: frozenset[tuple[Row, Column]] = field(init=False)

    def __post_init__(self) -> None:
        marks = [_marks(self, column) for column in self.columns]
        object.__setattr__(self, "best", frozenset[tuple[Row, Column]]().union(*(best for best, _ in marks)))
        object.__setattr__(self, "second", frozenset[tuple[Row, Column]]().union(*(second for _, second in marks)))


def shown(value: Value, column: Column) -> str:
    """Format a number, mostly with one decimal, and its standard deviation; a count without decimals."""
    if value.is_difference:
        return f"{value.mean:+.1f}"
    if not column.is_share:
        return f"{value.mean:.0f}"
    deviation = "" if value.deviation is None else f" ± {value.deviation:.{value.decimals}f}"
    return f"{value.mean:.{value.decimals}f}{deviation}"


def _marks(table: Table, column: Column) -> tuple[set[tuple[Row, Column]], set[tuple[Row, Column]]]:
    """Return the best and second-best cells of a column by the number shown, so equal numbers are marked alike."""
    numbers = {
        (row, column): round(value.mean, value.decimals)
        for row in table.rows
        if row.compared and (value := table.cells.get((row, column)))
    }
    if not column.is_share or len(numbers) < 2:
        return set(), set()
    best, *others = sorted(set(numbers.values()), reverse=True)
    second = others[0] if others else None
    return ({cell for cell, n in numbers.items() if n == best}, {cell for cell, n in numbers.items() if n == second})


@dataclass(frozen=True)
class Source:
    """A result, the place it was read from, and when it was written."""

    result: Result
    place: str
    when: str
    data: str = ""
    """The name of its data, if it differs from the default."""


def join(sources: Iterable[Source]) -> tuple[list[Row], Cells, list[str]]:
    """Return rows in the order of the sources, their values, and notes on values that have two results."""
    sources = _with_distinct_data(list(sources))
    rows = list(dict.fromkeys(row for source in sources for row, _, _ in _values(source)))
    cells: Cells = {}
    origin: dict[tuple[Row, Column], Source] = {}
    replaced: dict[tuple[str, str], list[_Replaced]] = {}
    for source in sorted(sources, key=lambda s: s.when):
        for row, column, value in _values(source):
            cell = (row, column)
            if cell in cells and cells[cell] != value:
                pair = (origin[cell].place, source.place)
                replaced.setdefault(pair, []).append(_Replaced(row, column, cells[cell], value))
            cells[cell], origin[cell] = value, source
    return *_with_unique_names(rows, cells), [*_notes_on_replaced(replaced), *_not_comparable(origin)]


def _with_distinct_data(sources: list[Source]) -> list[Source]:
    """Name the data more exactly where one model was evaluated on different folders of the same name."""
    found: dict[tuple[str, str, Row], dict[str, str]] = {}
    for source in sources:
        data, name = source.result.data, name_of_data(source.result.data)
        if not is_published_name(name) and "train" in data and "fingerprints" in data:
            row, _ = _row_and_metric(source.result, "")
            found.setdefault((name, source.result.protocol, row), {})[str(data["train"])] = str(data["fingerprints"])
    names = {name for (name, _, _), paths in found.items() if len(set(paths.values())) > 1}
    exact: dict[str, str] = {}
    for name in names:
        paths = sorted({path for (other, _, _), own in found.items() if other == name for path in own})
        exact |= dict(zip(paths, distinct_names(paths), strict=True))
    return [replace(source, data=exact.get(str(source.result.data.get("train")), "")) for source in sources]


@dataclass(frozen=True)
class _Replaced:
    """A value that a newer file also has."""

    row: Row
    column: Column
    old: Value
    new: Value


def _notes_on_replaced(replaced: dict[tuple[str, str], list[_Replaced]]) -> list[str]:
    """Return a note for each of the first few pairs of files, with one of their values."""
    notes = []
    for (before, after), values in list(replaced.items())[:_FEW]:
        first = next((value for value in values if value.column.is_headline), values[0])
        more = f" and {len(values) - 1} more of its values" if len(values) > 1 else ""
        old, new = shown(first.old, first.column), shown(first.new, first.column)
        notes.append(
            f"two results for {first.column} of {first.row.name}{more}: {old} in {before} and {new} in {after}; "
            "the latter is newer and is shown."
        )
    if len(replaced) > _FEW:
        notes.append(f"{len(replaced) - _FEW} more pairs of files have two results for one value; the newest is shown.")
    return notes


def _not_comparable(origin: dict[tuple[Row, Column], Source]) -> list[str]:
    """Return a note on the protocols and datasets whose results were not measured on the same images."""
    measured: dict[tuple[str, str], set[str]] = {}
    for (_, column), source in origin.items():
        data = source.result.data
        if "fingerprints" in data:
            on = f"{data['fingerprints']} {data.get('test')}"
            measured.setdefault((column.data, column.protocol), set()).add(on)
    protocols: dict[str, list[str]] = {}
    for (name, protocol), ways in measured.items():
        if len(ways) > 1:
            protocols.setdefault(name, []).append(protocol)
    if not protocols:
        return []
    which = "; ".join(f"{', '.join(names)} on {data}" for data, names in list(protocols.items())[:_FEW])
    more = f"; and {len(protocols) - _FEW} more datasets" if len(protocols) > _FEW else ""
    return [
        f"{which}{more}: these results are not comparable, because they were not measured on the same images "
        "(different training or test images, or a different split)."
    ]


def with_averages(cells: Cells, rows: Sequence[Row], columns: Sequence[Column], data: Sequence[str]) -> Cells:
    """Add the averages over datasets for the rows that have values on all of them."""
    added = dict(cells)
    for row in rows:
        for column in columns:
            if column.data == AVERAGE and (row, column) not in cells:
                parts = [cells.get((row, Column(column.protocol, name, column.metric))) for name in data]
                whole = [part.mean for part in parts if part is not None]
                if len(whole) == len(data):
                    added[row, column] = Value(sum(whole) / len(whole))
    return added


def _values(source: Source) -> Iterable[tuple[Row, Column, Value]]:
    """Yield the cells of one result."""
    result = source.result
    data = source.data or name_of_data(result.data)
    for name, value in result.values.items():
        row, metric = _row_and_metric(result, name)
        column = column_of(result.protocol, data, column_name(result, metric))
        scale = 100 if column.is_share else 1
        deviation = result.spread.get(name)
        yield row, column, Value(scale * value, None if deviation is None else scale * deviation)


def column_name(result: Result, name: str) -> str:
    """Return the name of a value, which a protocol may change by its settings."""
    protocol = protocol_of_result(result.protocol)
    return name if protocol is None else protocol.column_name(name, result.settings)


def _row_and_metric(result: Result, name: str) -> tuple[Row, str]:
    model = result.model
    branch = model.get("branch")
    title = str(model.get("name") or model.get("hash") or "model") + result.at_epoch
    epochs = model.get("epochs")
    return Row(
        f"{title} ({branch})" if branch else title,
        epochs=epochs if isinstance(epochs, int) else None,
        key=str(model.get("hash", ""))[:8],
    ), name


def _with_unique_names(rows: list[Row], cells: Cells) -> tuple[list[Row], Cells]:
    """Add the key to the names of rows whose names are equal."""
    names = [row.name for row in rows]
    new = {
        row: Row(f"{row.name} [{row.key}]", row.epochs, row.published, row.compared, row.key)
        if names.count(row.name) > 1 and row.key
        else row
        for row in rows
    }
    return list(new.values()), {(new[row], column): value for (row, column), value in cells.items()}
