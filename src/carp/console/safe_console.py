"""A Rich console that escapes unprintable characters in names from outside."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from carp.console.printable import printable


class SafeConsole(Console):
    """Escapes unprintable characters wherever they appear: in a line, a table cell, the label of a bar."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to print; control codes that Rich itself adds stay."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)
