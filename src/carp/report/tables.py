"""Results on the screen: a row a measure, a column a model."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from carp.evaluation.result import Result
from carp.report.columns import PROTOCOLS, column_of, data_name


def print_results(results: Sequence[Result]) -> None:
    """All values of results of one data set in percent, with their deviation; the best of a row bold."""
    models = list(dict.fromkeys(_model(result) for result in results))
    cells: dict[str, dict[str, tuple[float, float | None]]] = {}
    for result in results:
        for name, value in result.values.items():
            words = ", ".join(column_of(result.protocol, "", name).words)
            measure = f"{PROTOCOLS.get(result.protocol, result.protocol)}, {words}"
            cells.setdefault(measure, {})[_model(result)] = (value, result.spread.get(name))
    table = Table(title=f"{data_name(results[0].data['train'])}, %", title_justify="left")
    table.add_column("measure")
    for model in models:
        table.add_column(model, justify="right")
    for measure, values in cells.items():
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
