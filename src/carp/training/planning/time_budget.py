"""`carp train --minutes`: as many epochs as fit into a given time, with schedules that end when they do."""

from pathlib import Path

import torch

from carp.compute import distributed
from carp.config import Config
from carp.console.progress import Display
from carp.console.quantities import counted, duration
from carp.errors import ConfigError
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.runs.run_folder import config_of
from carp.training.planning.timing import Timing, time_steps

FOR_STEPS = 0.9  # share of the time; the rest is for reading images, validation, checkpoints and plots
_LENGTHS = ("epochs", "warmup_epochs")


def affordable_epochs(minutes: float, timing: Timing, steps_per_epoch: int) -> int:
    """Return how many epochs fit into `minutes` under the measured load."""
    return int(60 * minutes * FOR_STEPS / (timing.slowest * steps_per_epoch))


def fit_into(
    minutes: float, config: Config, source: Source, device: torch.device, folder: Path, display: Display
) -> Config:
    """Return the configuration with the epochs that fit into `minutes`, at most those it has.

    Warm-up is shortened in proportion. The time of a step is measured under the present load of the machine. A run that
    was begun keeps its length.
    """
    if minutes <= 0:
        raise ConfigError(f"--minutes must be more than 0, received {minutes:g}.")
    if distributed.world_size() > 1:
        raise ConfigError(
            f"--minutes measures the time of one process, received {distributed.world_size()} processes. Set epochs "
            "instead; `carp train --dry-run` measures the time of one process."
        )
    if (begun := config_of(folder)) is not None:
        return config.model_copy(update={key: getattr(begun, key) for key in _LENGTHS})
    steps_per_epoch = make_loader(source, config).steps_per_epoch
    with pixel_limit(config.max_image_pixels):
        timing = time_steps(config, source, device)
    epoch = timing.slowest * steps_per_epoch
    affordable = affordable_epochs(minutes, timing, steps_per_epoch)
    if affordable < 1:
        raise ConfigError(
            f"one epoch takes about {duration(epoch)} on this machine, received --minutes {minutes:g}. Give at least "
            f"{epoch / 60 / FOR_STEPS:.0f} minutes, or smaller views such as global_size={config.global_size // 2}."
        )
    epochs = min(config.epochs, affordable)
    display.say(
        f"{minutes:g} minutes: {counted(epochs, 'epoch')} of {duration(epoch)}"
        f"{', as set' if epochs == config.epochs else f' instead of {config.epochs}'} "
        f"({duration(timing.slowest)} per step, measured over {counted(timing.steps, 'step')})"
    )
    warmup = config.warmup_epochs * epochs / config.epochs
    return config.model_copy(update={"epochs": epochs, "warmup_epochs": warmup})
