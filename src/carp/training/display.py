"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.training.health import Diagnosis, Verdict
from carp.training.step import StepResult

_SECONDS_BETWEEN_LINES = 10.0
_STEPS_OF_RATE = 50
_STYLE = {
    Verdict.TOO_EARLY: "dim",
    Verdict.HEALTHY: "green",
    Verdict.BELOW_PIXELS: "yellow",
    Verdict.AT_RISK: "yellow",
    Verdict.NOT_LEARNING: "red",
    Verdict.COLLAPSED: "red",
}


Counter = Callable[[int, int], None]  # called with (done, total)


class TrainingProgress(Protocol):
    """Told of every step."""

    def step(self, result: StepResult, *, images: int) -> None:
        """One step is done."""

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        """New k-NN accuracies, and what they are compared with."""


class Display:
    """Writes to standard error, so that standard output stays for results."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = SafeConsole(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self._told: set[str] = set()

    def say(self, message: str) -> None:
        """A line of information."""
        self.console.print(printable(message), markup=False)

    def warn(self, message: str) -> None:
        """A line that deserves attention."""
        self.console.print(f"warning: {printable(message)}", style="yellow", markup=False)

    def warn_once(self, message: str) -> None:
        """The same, for what several parts of a command come across."""
        if message not in self._told:
            self._told.add(message)
            self.warn(message)

    def health(self, step: int, diagnosis: Diagnosis) -> None:
        """A verdict, when it changes and at the end."""
        self.console.print(f"step {step}: {diagnosis}", style=_STYLE[diagnosis.verdict], markup=False)

    def baselines(self, accuracies: dict[str, float]) -> None:
        """What the run has to beat."""
        self.say(f"k-NN before training: {_percentages(accuracies)}")

    @contextmanager
    def counting(self, what: str, total: int | None) -> Iterator[Counter]:
        """Progress of work that is counted; a total of None, or of 0 in a call, is not known."""
        if not self.console.is_terminal:
            yield _LineCounter(self, what)
            return
        with _bar(self.console) as bar:
            yield _BarCounter(bar, what, total)

    @contextmanager
    def training(self, first_step: int, last_step: int) -> Iterator[TrainingProgress]:
        """Progress of a run."""
        if not self.console.is_terminal:
            yield _Lines(self, first_step, last_step)
            return
        bar, details = _bar(self.console), Text()
        with Live(Group(bar, details), console=self.console, refresh_per_second=4):
            yield _Bar(bar, details, first_step, last_step)


class _BarCounter:
    def __init__(self, bar: Progress, what: str, total: int | None) -> None:
        self._bar, self._what, self._total = bar, what, total
        self._task = None if total is None else bar.add_task(what, total=total, rate="")

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:  # what may be over at once shows when there is something to tell
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
        self._bar.update(self._task, completed=done, total=total or self._total)


class _LineCounter:
    def __init__(self, display: Display, what: str) -> None:
        self._display, self._what, self._start = display, what, time.monotonic()
        self._printed = self._start

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed = now
            left = f"/{total}  {_clock((now - self._start) / done * (total - done))} left" if total and done else ""
            self._display.say(f"{self._what}: {done}{left}")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
    )


class _Rate:
    """Images per second over the last steps; None until two of them can be compared."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_STEPS_OF_RATE)

    def add(self, images: int) -> float | None:
        self._times.append(time.monotonic())
        passed = self._times[-1] - self._times[0]
        return images * (len(self._times) - 1) / passed if passed > 0 else None


class _Bar:
    """Two lines: how far and how fast; then what the loss does."""

    def __init__(self, bar: Progress, details: Text, first_step: int, last_step: int) -> None:
        self._bar, self._details, self._rate, self._knn = bar, details, _Rate(), ""
        self._task = bar.add_task("training", total=last_step, completed=first_step, rate="")

    def step(self, result: StepResult, *, images: int) -> None:
        self._bar.update(self._task, advance=1, rate=_describe_rate(self._rate.add(images)))
        self._details.plain = _describe(result) + self._knn

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        self._knn = _describe_knn(accuracies, baselines)


class _Lines:
    def __init__(self, display: Display, first_step: int, last_step: int) -> None:
        self._display, self._step, self._last, self._rate = display, first_step, last_step, _Rate()
        self._knn, self._printed = "", 0.0

    def step(self, result: StepResult, *, images: int) -> None:
        self._step += 1
        rate = self._rate.add(images)
        now = time.monotonic()
        if now - self._printed >= _SECONDS_BETWEEN_LINES or self._step == self._last:
            self._printed = now
            left = f"{_clock((self._last - self._step) * images / rate)} left" if rate else ""
            parts = (f"step {self._step}/{self._last}", _describe_rate(rate), _describe(result) + self._knn, left)
            self._display.say("  ".join(part for part in parts if part))

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        self._knn = _describe_knn(accuracies, baselines)


def _describe_rate(rate: float | None) -> str:
    return f"{rate:.0f} images/s" if rate else ""


def _describe(result: StepResult) -> str:
    return (
        f"loss {result.loss:.3f} (consistency {result.consistency:.3f}, kl {result.kl_to_uniform:.3f})  "
        f"lr {result.lr:.3g}  teacher {result.teacher_momentum:.4f}"
    )


def _describe_knn(accuracies: dict[str, float], baselines: dict[str, float]) -> str:
    return f"  k-NN {_percentages(accuracies)} ({_percentages(baselines)})"


def _percentages(accuracies: dict[str, float]) -> str:
    """Names as in metrics.jsonl, such as `knn_raw_pixels`, and their values."""
    return ", ".join(f"{n.removeprefix('knn_').replace('_', ' ')} {v:.1%}" for n, v in accuracies.items())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
