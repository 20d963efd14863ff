"""Summarises the metrics of a run for a study."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carp.errors import CollapseError, NonFiniteError
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import open_run
from carp.studies.job_result import Measured

DIVERGED = "diverged"
_LATE = 5  # kl_to_uniform is the mean over the last 1/5 of its lines

EarlyEnd = CollapseError | NonFiniteError
EARLY_ENDS = (CollapseError, NonFiniteError)  # ends of a run that are findings of a study, not mistakes


def measure_run(folder: Path, ended_by: EarlyEnd | None, accuracies: Callable[[], dict[str, float]]) -> Measured:
    """Measure a run that has ended. One that diverged has no accuracies; one that collapsed is measured as it is."""
    metrics = read_metrics(folder / "metrics.jsonl")
    diverged = isinstance(ended_by, NonFiniteError)
    return Measured(
        accuracies={} if diverged else accuracies(),
        kl_to_uniform=_late_kl(metrics),
        kl_limit=math.log(max(2, open_run(folder).config.block_size)),
        verdict=DIVERGED if diverged else _verdict(metrics),
        steps=max((line["step"] + 1 for line in metrics), default=0),
        notes=() if ended_by is None else (str(ended_by),),
    )


def _late_kl(metrics: list[dict[str, Any]]) -> float | None:
    found = [float(line["kl_to_uniform"]) for line in metrics if "kl_to_uniform" in line]
    return statistics.mean(found[-max(1, len(found) // _LATE) :]) if found else None


def _verdict(metrics: list[dict[str, Any]]) -> str:
    return next((str(line["health"]) for line in reversed(metrics) if "health" in line), "")


def job_seconds(training: float, resumed_at: int, steps: int, evaluation: float = 0.0) -> float | None:
    """Return the time of the whole job, including the steps before an interruption; None if it is not known."""
    if resumed_at >= steps > 0:
        return None
    return training * (steps / (steps - resumed_at) if resumed_at else 1.0) + evaluation
