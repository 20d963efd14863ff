"""What a run remembers about its start, so that it is judged by what has changed since. Part of every checkpoint."""

import math
from dataclasses import fields
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from carp.training.health import Diagnosis, Health, Knn, Progress, Verdict, diagnose

_SAMPLE = 4096  # weights per tensor
_RECENT = 3  # measurements that are averaged
_SMALLEST_ERROR = 1e-3  # of agreement: where it is perfect from the start, chance seems to play no part


class Course:
    """The first measurement, k-NN where there are labels, and the verdicts that follow from them."""

    def __init__(self, untrained: nn.Module) -> None:
        """`untrained` is the encoder before its first step; afterwards it may be trained or loaded."""
        self._encoder, self._weights = untrained, _sample(untrained)
        self.start: Health | None = None
        self.recent: list[tuple[float, float]] = []  # agreement and its error, of the last measurements after the start
        self.baselines: dict[str, float] = {}
        self.knn: dict[str, float] = {}
        self.collapsed_in_a_row = 0
        self.progress = Progress(0, None, 0.0, 0.0)

    def judge(self, step: int, health: Health) -> Diagnosis:
        """The verdict on a run after `step` steps."""
        if step <= 1:
            self.start = health
        else:
            self.recent = [*self.recent, (health.agreement, health.agreement_error)][-_RECENT:]
        self.progress = Progress(step, self.start, self._gain(), self._weight_change(), self._knn())
        diagnosis = diagnose(health, self.progress)
        collapsed = diagnosis.verdict is Verdict.COLLAPSED
        self.collapsed_in_a_row = self.collapsed_in_a_row + 1 if collapsed else 0
        return diagnosis

    @torch.no_grad()
    def _weight_change(self) -> float:
        return float((_sample(self._encoder) - self._weights).norm() / self._weights.norm())

    def _gain(self) -> float:
        """One batch differs from the next, so the mean of the last measurements is compared with the start."""
        if self.start is None or not self.recent:
            return 0.0
        values, errors = zip(*self.recent, strict=True)
        error = math.hypot(self.start.agreement_error, math.hypot(*errors) / len(errors))
        return (fmean(values) - self.start.agreement) / max(error, _SMALLEST_ERROR)

    def _knn(self) -> Knn | None:
        if not self.baselines or not self.knn:
            return None
        return Knn(max(self.knn.values()), self.baselines["knn_untrained"], self.baselines["knn_raw_pixels"])

    def state(self) -> dict[str, Any]:
        """For the checkpoint. The weights at the start are left out, as the seed gives them again."""
        return {
            "collapsed_in_a_row": self.collapsed_in_a_row,
            "health_at_start": self.start.as_dict() if self.start else None,
            "recent_agreement": self.recent,
            "knn_baselines": self.baselines,
            "knn": self.knn,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned; an older version's checkpoint has less of it."""
        self.collapsed_in_a_row = state["collapsed_in_a_row"]
        start = state.get("health_at_start") or {}
        known = start.keys() == {field.name for field in fields(Health)}
        self.start = Health(**start) if known else None
        self.recent = [(agreement, error) for agreement, error in state.get("recent_agreement", [])]
        self.baselines, self.knn = state.get("knn_baselines", {}), state.get("knn", {})


@torch.no_grad()
def _sample(encoder: nn.Module) -> Tensor:
    """Some weights of every matrix and filter, evenly spaced."""
    weights = [p.detach().reshape(-1) for p in encoder.parameters() if p.ndim > 1]
    return torch.cat([w[:: max(1, len(w) // _SAMPLE)].float() for w in weights])
