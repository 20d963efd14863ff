"""The measurements at the start of a run, so that it is judged by its change since. Part of every checkpoint."""

import math
from dataclasses import MISSING, fields
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from carp.training.health import Comparison, Diagnosis, Health, Knn, Progress, Verdict, diagnose

_SAMPLE = 4096  # weights per tensor
IMPORTED_AT = "imported_at"
_RECENT = 3  # measurements that are averaged
_WEIGHTS = "course.weights"  # tensor in the checkpoints of a run that began with weights from elsewhere
LABEL_FREE = "label_free"  # in the names of metrics
LABEL_FREE_ERROR = f"{LABEL_FREE}_standard_error"  # of the start
_IN_WORDS = {"knn": "k-NN", LABEL_FREE: "recognition of views of held-out images"}
_SMALLEST_ERROR = 1e-3  # of agreement: its estimate is 0 where agreement is perfect from the start


class Course:
    """Keeps the first measurement and k-NN accuracies, and derives verdicts from them."""

    def __init__(self, untrained: nn.Module, *, given: bool = False) -> None:
        """`untrained` is the encoder before its first step; it may be trained or loaded afterwards.

        Its weights are `given` if no seed reproduces them.
        """
        self._encoder, self._weights, self._given = untrained, _sample(untrained), given
        self.imported_at = 0  # the first step of a run that began with imported weights
        self.start: Health | None = None
        self.recent: list[tuple[float, float]] = []  # agreement and its error, of the last measurements after the start
        self.baselines: dict[str, float] = {}
        self.knn: dict[str, float] = {}
        self.best: tuple[int, float] | None = None  # step and value of a run that is compared with its start
        self.collapsed_in_a_row = 0
        self.progress = Progress(0, None, 0.0, 0.0)

    def judge(self, step: int, health: Health) -> Diagnosis:
        """Judge a run after `step` steps."""
        if step <= 1 or (self.imported_at and self.start is None):
            self.start = health
        else:
            self.recent = [*self.recent, (health.agreement, health.agreement_error)][-_RECENT:]
        done = step - self.imported_at
        self.progress = Progress(done, self.start, self._gain(), self._weight_change(), self._knn(), self.comparison())
        diagnosis = diagnose(health, self.progress)
        collapsed = diagnosis.verdict is Verdict.COLLAPSED
        self.collapsed_in_a_row = self.collapsed_in_a_row + 1 if collapsed else 0
        return diagnosis

    @torch.no_grad()
    def _weight_change(self) -> float:
        return float((_sample(self._encoder) - self._weights).norm() / self._weights.norm())

    def _gain(self) -> float:
        """Compare the mean of the last measurements with the start, as single batches vary."""
        if self.start is None or not self.recent:
            return 0.0
        values, errors = zip(*self.recent, strict=True)
        error = math.hypot(self.start.agreement_error, math.hypot(*errors) / len(errors))
        return (fmean(values) - self.start.agreement) / max(error, _SMALLEST_ERROR)

    def _knn(self) -> Knn | None:
        if "knn_raw_pixels" not in self.baselines or not self.knn:
            return None
        untrained = self.baselines["knn_start" if self._given else "knn_untrained"]
        return Knn(max(self.knn.values()), untrained, self.baselines["knn_raw_pixels"])

    def validated(self, step: int, values: dict[str, float]) -> None:
        """Take note of a validation after `step` steps; 0 is the start, whose values are baselines.

        Without labels, few images are held out, so a checkpoint must be ahead of the start by more than the noise.
        """
        if step:
            self.knn = values
        else:
            self.baselines = values
        value = _deciding(values)
        if not self._given or value is None:
            return
        if self.best is None or value > self.best[1] + (self._noise if self.best[0] == 0 else 0.0):
            self.best = (step, value)

    @property
    def _noise(self) -> float:
        """The standard error of the start's value; 0 with labels, and in runs of older versions."""
        return self.baselines.get(LABEL_FREE_ERROR, 0.0)

    def comparison(self) -> Comparison | None:
        """Return the last validation of a run with a start beside the first one; None before there are two."""
        now, start = _deciding(self.knn), _deciding(self.baselines)
        if not self._given or now is None or start is None or self.best is None:
            return None
        measure = _IN_WORDS["knn" if "knn_start" in self.baselines else LABEL_FREE]
        return Comparison(measure, now, start, best=self.best[1], best_step=self.best[0], noise=self._noise)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs. The initial weights are left out, as the seed reproduces them."""
        imported = {IMPORTED_AT: self.imported_at} if self.imported_at else {}
        return {
            **imported,
            "collapsed_in_a_row": self.collapsed_in_a_row,
            "health_at_start": self.start.as_dict() if self.start else None,
            "recent_agreement": self.recent,
            "knn_baselines": self.baselines,
            "knn": self.knn,
            **({"best": list(self.best)} if self.best else {}),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the initial weights if they were imported or given, because no seed reproduces those."""
        return {_WEIGHTS: self._weights} if self.imported_at or self._given else {}

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `state` and `tensors` returned, with the encoder as it was; older versions stored less."""
        self.imported_at = state.get(IMPORTED_AT, 0)
        if self.imported_at or self._given:
            self._weights = tensors[_WEIGHTS].to(self._weights) if _WEIGHTS in tensors else _sample(self._encoder)
        self.collapsed_in_a_row = state["collapsed_in_a_row"]
        start = state.get("health_at_start") or {}
        required = {field.name for field in fields(Health) if field.default is MISSING}
        known = required <= start.keys() <= {field.name for field in fields(Health)}
        self.start = Health(**start) if known else None
        self.recent = [(agreement, error) for agreement, error in state.get("recent_agreement", [])]
        self.baselines, self.knn = state.get("knn_baselines", {}), state.get("knn", {})
        step, value = state.get("best", (None, None))
        self.best = None if step is None else (int(step), float(value))


def _deciding(values: dict[str, float]) -> float | None:
    """The value that a run with a start is judged by: the teacher's, or that of the start; None if there is none."""
    names = (f"{measure}_{which}" for which in ("teacher", "student", "start") for measure in _IN_WORDS)
    return next((values[name] for name in names if name in values), None)


@torch.no_grad()
def _sample(encoder: nn.Module) -> Tensor:
    """Sample evenly spaced weights of every matrix and filter."""
    weights = [p.detach().reshape(-1) for p in encoder.parameters() if p.ndim > 1]
    return torch.cat([w[:: max(1, len(w) // _SAMPLE)].float() for w in weights])
