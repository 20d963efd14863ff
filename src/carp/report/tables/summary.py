"""Prints results with one row per measure and one column per model, and how they were tested."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.evaluation.data_names import name_of_data
from carp.evaluation.result import Result
from carp.report.tables.columns import Column, column_of, headline_columns, protocol_title
from carp.report.tables.join import column_name
from carp.report.tables.screen import print_in_parts

_Cells = dict[Column, dict[str, tuple[float, float | None]]]


def print_results(results: Sequence[Result]) -> None:
    """Print the results on one dataset in percent, with standard deviations; the best value of a row is bold.

    If there is only one protocol, all its values are shown; otherwise those that the paper's tables show.
    """
    models = list(dict.fromkeys(_model(result) for result in results))
    cells: _Cells = {}
    for result in results:
        for name, value in result.values.items():
            column = column_of(result.protocol, name_of_data(result.data), column_name(result, name))
            cells.setdefault(column, {})[_model(result)] = (value, result.spread.get(name))
    columns = list(cells)
    if len({column.protocol for column in columns}) > 1:
        columns = headline_columns(columns)
    title = f"{name_of_data(results[0].data)}, %"
    print_in_parts(models, lambda some: _table(title, columns, cells, some, compared=len(models) > 1))
    if tested := how_tested(results):
        SafeConsole(highlight=False, soft_wrap=True).print(printable(tested), markup=False)


def how_tested(results: Sequence[Result]) -> str:
    """Describe in one line what the values were measured on: test images, or a substitute for them."""
    ways: dict[str, list[str]] = {}
    for result in results:
        if "test" in result.data:
            protocols = ways.setdefault(str(result.data["test"]), [])
            protocols += [name] if (name := protocol_title(result.protocol)) not in protocols else []
    if len(ways) == 1:
        return f"test: {next(iter(ways))}"
    return "test: " + "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items()) if ways else ""


def _table(title: str, columns: list[Column], cells: _Cells, models: Sequence[str], *, compared: bool) -> Table:
    table = Table(title=Text(printable(title), style="italic"), title_justify="left")
    table.add_column("measure", overflow="fold")
    for model in models:
        table.add_column(Text(printable(model)), justify="right", no_wrap=True)
    for column in columns:
        values = cells[column]
        measure = ", ".join([protocol_title(column.protocol), *column.words])
        best = max(round(100 * value, 1) for value, _ in values.values())
        table.add_row(
            Text(printable(measure)), *(_text(values.get(model), best if compared else None) for model in models)
        )
    return table


def _model(result: Result) -> str:
    return result.model_name or "features"


def _text(value: tuple[float, float | None] | None, best: float | None) -> Text:
    if value is None:
        return Text("–")
    mean, deviation = value
    text = f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")
    return Text(text, style="bold" if round(100 * mean, 1) == best else "")
