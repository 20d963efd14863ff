"""Values that change with the step, computed from the step alone (so nothing has to be saved)."""

import math

from carp.config import OptimisationSettings


def cosine(start: float, end: float, step: int, num_steps: int, *, endpoint: bool = True) -> float:
    """Half a cosine from `start` at step 0 to `end` at the last step, or without `endpoint` to one step later."""
    progress = min(1.0, step / max(1, num_steps - endpoint))
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


class Schedules:
    """All schedules of a run."""

    def __init__(self, config: OptimisationSettings, steps_per_epoch: int) -> None:
        self._config = config
        self.num_steps = config.epochs * steps_per_epoch
        self._warmup = round(config.warmup_epochs * steps_per_epoch)

    def lr(self, step: int) -> float:
        """A linear warm-up, if any, then a cosine. Only the starting value is scaled with the batch."""
        start, end = self._config.lr
        peak = self._config.base_lr
        if step < self._warmup:
            return peak * (step + 1) / self._warmup
        end = peak if start == end else end
        return self._cosine(peak, end, step - self._warmup, self.num_steps - self._warmup)

    def weight_decay(self, step: int) -> float:
        """Weight decay of matrices; vectors are never decayed."""
        return self._cosine(*self._config.weight_decay, step, self.num_steps)

    def teacher_momentum(self, step: int) -> float:
        """Share of itself that the teacher keeps after this step."""
        return self._cosine(*self._config.teacher_momentum, step, self.num_steps)

    def entropy_weight(self, step: int) -> float:
        """Weight of kl_to_uniform."""
        return self._cosine(*self._config.entropy_weight, step, self.num_steps)

    def _cosine(self, start: float, end: float, step: int, num_steps: int) -> float:
        return cosine(start, end, step, num_steps, endpoint=self._config.schedule_endpoint)
