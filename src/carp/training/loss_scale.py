"""Loss scaling for `precision: fp16`, in which small gradients would become zero.

The loss is multiplied by the scale before the backward pass, and the gradient is divided by it afterwards. A gradient
that overflows halves the scale; 2,000 steps without an overflow double it: the rule and the numbers of
`torch.amp.GradScaler`. The scale is kept on the host, because every step fetches the norm of the whole gradient anyway.
That norm shows an overflow in any process to all of them, without another synchronisation.
"""

from typing import Any

_FIRST = 2.0**16
_LEAST = 1.0  # a gradient that overflows unscaled is not a matter of the scale
_STEPS_TO_GROW = 2000


class LossScale:
    """The scale of the loss, and the number of steps since it changed; always 1 without `active`."""

    def __init__(self, *, active: bool) -> None:
        self.active = active
        self.value = _FIRST if active else 1.0
        self._steps = 0

    def __str__(self) -> str:
        return f"loss scale {self.value:g}"

    @property
    def can_fall(self) -> bool:
        """Whether a lower scale may prevent an overflow."""
        return self.active and self.value > _LEAST

    def update(self, *, overflowed: bool) -> None:
        """Adapt the scale after a step."""
        if not self.active:
            return
        self._steps = 0 if overflowed else self._steps + 1
        if overflowed:
            self.value /= 2
        elif self._steps == _STEPS_TO_GROW:
            self.value, self._steps = 2 * self.value, 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"loss_scale": [self.value, self._steps]} if self.active else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; a new run has none."""
        if "loss_scale" in state:
            self.value, self._steps = float(state["loss_scale"][0]), int(state["loss_scale"][1])
