"""Tables on a terminal: no wider than it is, and never a number cut in two."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from carp.console import SafeConsole

T = TypeVar("T")
_UNBOUNDED = 10_000
_NAME, _VALUE = 20, 20  # widths that a name and a heading of values always have


def print_in_parts(columns: Sequence[T], draw: Callable[[Sequence[T]], Table]) -> None:
    """Print the table that `draw` makes of the columns; where it is too wide, as several tables below each other.

    Names fold at half the width of the terminal, headings of values (columns that do not wrap) end in `…`. Where nobody
    looks, as in a file, nothing is folded.
    """
    console = SafeConsole(width=_UNBOUNDED, soft_wrap=True)
    room = Console().width if console.is_terminal else _UNBOUNDED
    while columns:
        parts = ((n, _bounded(draw(columns[:n]), room)) for n in range(len(columns), 0, -1))
        count, table = next((n, part) for n, part in parts if n == 1 or console.measure(part).maximum <= room)
        console.print(table)
        columns = columns[count:]


def _bounded(table: Table, room: int) -> Table:
    for column in table.columns:
        if room < _UNBOUNDED:
            column.max_width = _VALUE if column.no_wrap else max(_NAME, room // 2)
    return table
