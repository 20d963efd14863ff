"""Settings to change when a run would take too long on this machine: smaller views, then fewer epochs.

The cost of a step falls with the area of the views, so smaller views allow more epochs in the same time. The choice is
the largest size at which enough epochs fit into the limit, measured with real steps.
"""

from dataclasses import dataclass

import torch

from carp.config import SMALL_IMAGE, Config
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.training.planning.timing import Timing, time_steps

LIMIT = 3600.0  # acceptable seconds for a first result
SIZES = (224, 160, 112, 80, SMALL_IMAGE)
_ENOUGH = 20  # epochs; as few as `auto` ever chooses
_SECONDS = 6.0  # to time one size


@dataclass(frozen=True)
class Choice:
    """Settings to add to the command, and the resulting time; no settings if the run is short enough without."""

    settings: tuple[str, ...]
    fastest: float
    slowest: float


@dataclass(frozen=True)
class FittingSize:
    """Views at which enough epochs fit into a limit, or the smallest ones."""

    config: Config
    settings: tuple[str, ...]
    timing: Timing
    steps_per_epoch: int
    epochs: int  # that fit into the limit, at most those of the run

    @property
    def epoch_seconds(self) -> float:
        """Seconds per epoch if the machine were idle."""
        return self.timing.fastest * self.steps_per_epoch


def fitting_size(
    config: Config, source: Source, device: torch.device, *, limit: float = LIMIT, seconds: float = _SECONDS
) -> FittingSize:
    """Choose the largest views at which enough epochs fit into `limit` seconds; `seconds` is the time to time one."""
    for size in (config.global_size, *(size for size in SIZES if size < config.global_size)):
        smaller, settings = with_size(config, size)
        timing = time_steps(smaller, source, device, seconds=seconds)
        steps_per_epoch = make_loader(source, smaller).steps_per_epoch
        epochs = min(config.epochs, int(limit / (timing.fastest * steps_per_epoch)))
        if epochs >= min(_ENOUGH, config.epochs):
            break
    return FittingSize(smaller, settings, timing, steps_per_epoch, epochs)


def best_choice(config: Config, source: Source, device: torch.device, seconds: float) -> Choice:
    """Choose the largest views, then the most epochs, that fit into the limit; `seconds` is the present time."""
    if seconds <= LIMIT:
        return Choice((), seconds, seconds)
    fitting = fitting_size(config, source, device)
    settings, timing = fitting.settings, fitting.timing
    epochs = max(fitting.epochs, min(_ENOUGH, config.epochs))
    if epochs < config.epochs:
        settings = (*settings, f"epochs={epochs}")
        if config.warmup_epochs >= epochs:
            settings = (*settings, f"warmup_epochs={epochs // 10}")
    steps = epochs * fitting.steps_per_epoch
    return Choice(settings, timing.fastest * steps, timing.slowest * steps)


def with_size(config: Config, size: int) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with global views of `size` and proportional local views, and the changed settings."""
    if size == config.global_size:
        return config, ()
    values: dict[str, object] = {"global_size": size}
    if config.local_views:
        values["local_size"] = max(8, round(config.local_size * size / config.global_size / 8) * 8)
    if size <= SMALL_IMAGE and config.stem == "auto":
        values["stem"] = "encoder"  # the small stem costs four to sixteen times as much
    return config.model_copy(update=values), tuple(f"{key}={value}" for key, value in values.items())
