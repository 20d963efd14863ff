"""Results on the screen: a row a measure, a column a model."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from carp.evaluation.result import Result
from carp.report.columns import PROTOCOLS, Column, column_of, data_name, headline_columns
from carp.report.join import told_apart


def print_results(results: Sequence[Result]) -> None:
    """The values of results of one data set in percent, with their deviation; the best of a row bold.

    All values of one protocol; of several those that the paper's tables show.
    """
    models = list(dict.fromkeys(_model(result) for result in results))
    cells: dict[Column, dict[str, tuple[float, float | None]]] = {}
    for result in results:
        for name, value in result.values.items():
            column = column_of(result.protocol, result.data["train"], told_apart(result, name))
            cells.setdefault(column, {})[_model(result)] = (value, result.spread.get(name))
    columns = list(cells)
    if len({column.protocol for column in columns}) > 1:
        columns = headline_columns(columns)
    table = Table(title=f"{data_name(results[0].data['train'])}, %", title_justify="left")
    table.add_column("measure")
    for model in models:
        table.add_column(model, justify="right")
    for column in columns:
        values = cells[column]
        measure = ", ".join([PROTOCOLS.get(column.protocol, column.protocol), *column.words])
        best = max(round(100 * value, 1) for value, _ in values.values())
        table.add_row(measure, *(_text(values.get(model), best if len(models) > 1 else None) for model in models))
    Console(soft_wrap=True).print(table)


def _model(result: Result) -> str:
    return str(result.model.get("branch") or result.model.get("name") or "features")


def _text(value: tuple[float, float | None] | None, best: float | None) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    text = f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")
    return f"[bold]{text}[/bold]" if round(100 * mean, 1) == best else text
