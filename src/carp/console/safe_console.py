"""A console of Rich that prints names from outside harmlessly."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from carp.console.printable import printable


class SafeConsole(Console):
    """Escapes what is no visible text, whatever it is part of: a line, a cell of a table, the label of a bar."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something to print; control codes that Rich itself adds stay."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)
