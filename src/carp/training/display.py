"""The console output of a run: its steps, its health, its k-NN accuracy."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from carp.console.progress import SECONDS_BETWEEN_LINES, Display, progress_bar
from carp.console.quantities import clock
from carp.training.course import LABEL_FREE
from carp.training.health import Comparison, Diagnosis, Verdict
from carp.training.step import StepResult

_STEPS_OF_RATE = 50
_STYLE = {
    Verdict.TOO_EARLY: "dim",
    Verdict.HEALTHY: "green",
    Verdict.BELOW_PIXELS: "yellow",
    Verdict.AT_RISK: "yellow",
    Verdict.WORSE: "red",
    Verdict.NOT_LEARNING: "red",
    Verdict.COLLAPSED: "red",
}


class TrainingProgress(Protocol):
    """Shows every step of a run."""

    def step(self, result: StepResult, *, images: int) -> None:
        """Show a step that is done."""

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        """Show new k-NN accuracies next to those that they are compared with."""


class TrainingDisplay(Display):
    """A display that also shows the steps, the health and the k-NN accuracy of a run."""

    def health(self, step: int, diagnosis: Diagnosis) -> None:
        """Print a verdict."""
        self.console.print(f"step {step}: {diagnosis}", style=_STYLE[diagnosis.verdict], markup=False)

    def baselines(self, accuracies: dict[str, float]) -> None:
        """Print the values that the run has to beat."""
        self.say(f"{_measure(accuracies)} before training: {_percentages(accuracies)}")

    def comparison(self, found: Comparison, steps_per_epoch: int) -> None:
        """Print a table of a run with a start: the start, the best checkpoint and the last one."""
        table = Table(title=found.measure, title_justify="left", box=box.SIMPLE_HEAD)
        for column in ("checkpoint", "value", "against the start"):
            table.add_column(column, justify="left" if column == "checkpoint" else "right")
        best = "the start" if found.best_step == 0 else f"epoch {found.best_step // steps_per_epoch}"
        for name, value in (("start", found.start), (f"best: {best}", found.best), ("last", found.now)):
            table.add_row(name, f"{value:.1%}", "" if name == "start" else f"{100 * (value - found.start):+.1f}")
        self.console.print(table)
        if found.noise and found.best_step == 0:
            self.say(
                f"no checkpoint is ahead of the start by more than its standard error, {100 * found.noise:.1f} points."
            )
        self.say(
            f"carp.load, embed, eval and export use the best one ({best}); --branch teacher@last is the newest one."
        )

    @contextmanager
    def training(self, first_step: int, last_step: int) -> Iterator[TrainingProgress]:
        """Show the progress of a run."""
        if not self.console.is_terminal:
            yield _Lines(self, first_step, last_step)
            return
        bar, details = progress_bar(self.console), Text()
        with Live(Group(bar, details), console=self.console, refresh_per_second=4):
            yield _Bar(bar, details, first_step, last_step)


class _Rate:
    """Images per second over the last steps; None before the second step."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_STEPS_OF_RATE)

    def add(self, images: int) -> float | None:
        self._times.append(time.monotonic())
        passed = self._times[-1] - self._times[0]
        return images * (len(self._times) - 1) / passed if passed > 0 else None


class _Bar:
    """Two lines: progress and speed, then the loss."""

    def __init__(self, bar: Progress, details: Text, first_step: int, last_step: int) -> None:
        self._bar, self._details, self._rate, self._knn = bar, details, _Rate(), ""
        self._task = bar.add_task("training", total=last_step, completed=first_step, rate="")

    def step(self, result: StepResult, *, images: int) -> None:
        self._bar.update(self._task, advance=1, rate=_describe_rate(self._rate.add(images)))
        self._details.plain = _describe(result) + self._knn

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        self._knn = _describe_knn(accuracies, baselines)


class _Lines:
    def __init__(self, display: TrainingDisplay, first_step: int, last_step: int) -> None:
        self._display, self._step, self._last, self._rate = display, first_step, last_step, _Rate()
        self._knn, self._printed = "", 0.0

    def step(self, result: StepResult, *, images: int) -> None:
        self._step += 1
        rate = self._rate.add(images)
        now = time.monotonic()
        if now - self._printed >= SECONDS_BETWEEN_LINES or self._step == self._last:
            self._printed = now
            left = f"{clock((self._last - self._step) * images / rate)} left" if rate else ""
            parts = (f"step {self._step}/{self._last}", _describe_rate(rate), _describe(result) + self._knn, left)
            self._display.say("  ".join(part for part in parts if part))

    def knn(self, accuracies: dict[str, float], baselines: dict[str, float]) -> None:
        self._knn = _describe_knn(accuracies, baselines)


def _describe_rate(rate: float | None) -> str:
    return f"{rate:.0f} images/s" if rate else ""


def _describe(result: StepResult) -> str:
    koleo = "" if result.koleo is None else f", koleo {result.koleo:.3f}"
    return (
        f"loss {result.loss:.3f} (consistency {result.consistency:.3f}, kl {result.kl_to_uniform:.3f}{koleo})  "
        f"lr {result.lr:.3g}  teacher {result.teacher_momentum:.4f}"
    )


def _describe_knn(accuracies: dict[str, float], baselines: dict[str, float]) -> str:
    return f"  {_measure(accuracies)} {_percentages(accuracies)} ({_percentages(baselines)})"


def _measure(values: dict[str, float]) -> str:
    return "k-NN" if any(name.startswith("knn_") for name in values) else "recognition of held-out views"


def _percentages(accuracies: dict[str, float]) -> str:
    """Format accuracies; their names are those in metrics.jsonl, such as `knn_raw_pixels`."""
    short = {name.removeprefix("knn_").removeprefix(f"{LABEL_FREE}_"): value for name, value in accuracies.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in short.items())
