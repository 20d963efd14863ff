"""Tables on the screen."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def print_accuracies(title: str, rows: Sequence[tuple[str, float]]) -> None:
    """One row a name, accuracy in percent, best in bold; to standard output."""
    best = max(value for _, value in rows)
    table = Table(title=title, title_justify="left")
    table.add_column("features")
    table.add_column("top-1, %", justify="right")
    for name, value in rows:
        text = f"{100 * value:.1f}"
        table.add_row(name, f"[bold]{text}[/bold]" if value == best else text)
    Console(soft_wrap=True).print(table)
