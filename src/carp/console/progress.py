"""Messages, warnings and progress of a command: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from carp.console.printable import printable
from carp.console.quantities import clock
from carp.console.safe_console import SafeConsole

SECONDS_BETWEEN_LINES = 10.0

Counter = Callable[[int, int], None]  # called with (done, total)


class Display:
    """Writes to standard error, so that standard output is reserved for results."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = SafeConsole(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self._warned: set[str] = set()

    def say(self, message: str) -> None:
        """Print one line of information."""
        self.console.print(printable(message), markup=False)

    def warn(self, message: str) -> None:
        """Print one line that deserves attention."""
        self.console.print(f"warning: {printable(message)}", style="yellow", markup=False)

    def warn_once(self, message: str) -> None:
        """Print a warning unless this display has printed it before."""
        if message not in self._warned:
            self._warned.add(message)
            self.warn(message)

    @contextmanager
    def counting(self, what: str, total: int | None) -> Iterator[Counter]:
        """Show the progress of countable work; a total of None, or 0 in a call, means unknown."""
        if not self.console.is_terminal:
            yield _LineCounter(self, what)
            return
        with progress_bar(self.console) as bar:
            yield _BarCounter(bar, what, total)


class _BarCounter:
    def __init__(self, bar: Progress, what: str, total: int | None) -> None:
        self._bar, self._what, self._total = bar, what, total
        self._task = None if total is None else bar.add_task(what, total=total, rate="")

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:  # work that ends before its first report shows no bar
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
        self._bar.update(self._task, completed=done, total=total or self._total)


class _LineCounter:
    def __init__(self, display: Display, what: str) -> None:
        self._display, self._what, self._start = display, what, time.monotonic()
        self._printed = self._start

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            left = f"/{total}  {clock((now - self._start) / done * (total - done))} left" if total and done else ""
            self._display.say(f"{self._what}: {done}{left}")


def progress_bar(console: Console) -> Progress:
    """Return a bar with count, time left and, in the task's field `rate`, speed."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
    )
