"""`carp train --minutes`: as many epochs as fit into a given time, with schedules that end when they do.

If the size of the views is not set, a run from weights takes smaller views before it takes fewer epochs. A run from
scratch does so only if it would have very few.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from carp.compute import distributed
from carp.config import SMALL_IMAGE, Config
from carp.console.progress import Display
from carp.console.quantities import counted, duration
from carp.errors import ConfigError
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.runs.run_folder import config_of
from carp.training.planning.best_choice import ENOUGH_EPOCHS, SECONDS, size_settings, sizes_to_try
from carp.training.planning.timing import Timing, time_steps

FOR_STEPS = 0.9  # share of the time; the rest is for reading images, validation, checkpoints and plots
_LENGTHS = ("epochs", "warmup_epochs")


def check_minutes(minutes: float, overrides: Mapping[str, Any]) -> None:
    """Refuse a time that is not one, and a length that is given twice."""
    if minutes <= 0:
        raise ConfigError(f"--minutes must be more than 0, received {minutes:g}.")
    if "epochs" in overrides:
        raise ConfigError(
            f"--minutes and epochs both set the length of the run, received {minutes:g} minutes and "
            f"epochs={overrides['epochs']}. Leave out one of them."
        )


def affordable_epochs(minutes: float, timing: Timing, steps_per_epoch: int) -> int:
    """Return how many epochs fit into `minutes` under the measured load."""
    return int(60 * minutes * FOR_STEPS / (timing.slowest * steps_per_epoch))


@dataclass(frozen=True)
class Budget:
    """What fits into a given time: the size of the views, and the epochs, which may be none."""

    size: dict[str, object]  # settings; empty for the size as it is
    epochs: int
    timing: Timing


def budget(
    minutes: float,
    config: Config,
    source: Source,
    device: torch.device,
    *,
    any_size: bool,
    first: Timing | None = None,
) -> Budget:
    """Measure how many epochs fit into `minutes`, at most those of the configuration.

    With `any_size`, smaller views are tried until enough epochs fit: all of them if the run starts from weights, 20 if
    it starts from scratch. Otherwise, and for the smallest views, fewer epochs must do. `first` is the timing of the
    size as it is, if that has been measured.
    """
    steps_per_epoch = make_loader(source, config).steps_per_epoch
    sizes = sizes_to_try(config) if any_size else [config.global_size]
    enough = config.epochs if config.start is not None else min(ENOUGH_EPOCHS, config.epochs)
    with pixel_limit(config.max_image_pixels):
        for size in sizes:
            settings = size_settings(config, size)
            seconds = SECONDS if len(sizes) > 1 else None
            timing = first or time_steps(config.model_copy(update=settings), source, device, seconds=seconds)
            first = None
            epochs = min(config.epochs, affordable_epochs(minutes, timing, steps_per_epoch))
            if epochs >= enough:
                break
    return Budget(settings, epochs, timing)


def fit_into(
    minutes: float,
    config: Config,
    source: Source,
    device: torch.device,
    folder: Path,
    display: Display,
    *,
    any_size: bool = False,
) -> Config:
    """Return the configuration with the epochs that fit into `minutes`, at most those it has.

    Warm-up is shortened in proportion. The time of a step is measured under the present load of the machine. A run that
    was begun keeps its length and size. With `any_size`, the views may become smaller.
    """
    if distributed.world_size() > 1:
        raise ConfigError(
            f"--minutes measures the time of one process, received {distributed.world_size()} processes. Set epochs "
            "instead; `carp train --dry-run` measures the time of one process."
        )
    if (begun := config_of(folder)) is not None:
        smaller = size_settings(config, begun.global_size) if any_size else {}
        return config.model_copy(update={**smaller, **{key: getattr(begun, key) for key in _LENGTHS}})
    found = budget(minutes, config, source, device, any_size=any_size)
    timing, epochs = found.timing, found.epochs
    epoch = timing.slowest * make_loader(source, config).steps_per_epoch
    config = config.model_copy(update=found.size)
    if epochs < 1:
        raise ConfigError(
            f"one epoch takes about {duration(epoch)} on this machine, received --minutes {minutes:g}. Give at least "
            f"{math.ceil(10 * epoch / 60 / FOR_STEPS) / 10:g} minutes, or {_cheaper(config)}."
        )
    size = f" with global_size={config.global_size}" if any_size else ""
    display.say(
        f"{minutes:g} minutes: {counted(epochs, 'epoch')} of {duration(epoch)}{size}"
        f"{', as set' if epochs == config.epochs else f' instead of {config.epochs}'} "
        f"({duration(timing.slowest)} per step, measured over {counted(timing.steps, 'step')})"
    )
    warmup = config.warmup_epochs * epochs / config.epochs
    return config.model_copy(update={"epochs": epochs, "warmup_epochs": warmup})


def _cheaper(config: Config) -> str:
    """Name settings that take less time; a ResNet whose stem becomes that of small images would take more."""
    if config.stem == "auto" and config.global_size <= SMALL_IMAGE:
        return "the encoder's own stem, which is cheaper for a ResNet: stem=encoder"
    size = config.global_size // 2
    return f"smaller views such as global_size={size}{' stem=encoder' if size <= SMALL_IMAGE else ''}"
