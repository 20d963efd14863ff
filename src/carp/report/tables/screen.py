"""Prints tables: no wider than the terminal and without splitting numbers; in a pipe plain, one row per line."""

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole

T = TypeVar("T")
_UNBOUNDED = 10_000
_NAME, _VALUE = 20, 20  # names can always take this width, headings of values at most this


def print_in_parts(columns: Sequence[T], draw: Callable[[Sequence[T]], Table]) -> None:
    """Print the table that `draw` makes of the columns; if it is too wide, as several tables below each other.

    Names wrap at half the width of the terminal, and long headings of values (columns that do not wrap) end in `…`. In
    a pipe or a file nothing wraps: columns are aligned with spaces, one row per line.
    """
    console = SafeConsole(width=_UNBOUNDED, soft_wrap=True)
    if not console.is_terminal:
        sys.stdout.write(plain_text(draw(columns)))
        return
    room = Console().width
    while columns:
        parts = ((n, _bounded(draw(columns[:n]), room)) for n in range(len(columns), 0, -1))
        count, table = next((n, part) for n, part in parts if n == 1 or console.measure(part).maximum <= room)
        console.print(table)
        columns = columns[count:]


def plain_text(table: Table) -> str:
    """Render a table without lines and styles, its columns aligned with spaces, one row per line."""
    table.box, table.show_edge, table.pad_edge, table.padding = None, False, False, (0, 2, 0, 0)
    lines = [str(table.title)] if table.title else []
    table.title = None
    for column in table.columns:
        heading = column.header if isinstance(column.header, Text) else Text(str(column.header))
        column.header = Text(" ".join(heading.plain.split("\n")))
        column.no_wrap, column.max_width, column.overflow = True, None, "crop"
    text = io.StringIO()
    SafeConsole(file=text, width=_UNBOUNDED, soft_wrap=True, color_system=None).print(table)
    return "\n".join([*lines, *(line.rstrip() for line in text.getvalue().splitlines())]) + "\n"


def print_rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print the names of the columns, then one tab-separated line per row, for programs; tabs in names are escaped."""
    for row in (names, *rows):
        sys.stdout.write("\t".join(printable(cell) for cell in row) + "\n")


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return SafeConsole().is_terminal


def _bounded(table: Table, room: int) -> Table:
    for column in table.columns:
        column.max_width = _VALUE if column.no_wrap else max(_NAME, room // 2)
    return table
