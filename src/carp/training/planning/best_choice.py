"""Settings to change when a run would take too long on this machine: smaller views, then fewer epochs.

The cost of a step falls with the area of the views, so smaller views allow more epochs in the same time. The choice is
the largest size at which enough epochs fit into the limit, measured with real steps.
"""

from dataclasses import dataclass

import torch

from carp.config import SMALL_IMAGE, Config
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.model.encoder import build_encoder, patch_size
from carp.training.planning.timing import Timing, time_steps

LIMIT = 3600.0  # acceptable seconds for a first result
_SIZES = (224, 160, 112, 80, SMALL_IMAGE)
ENOUGH_EPOCHS = 20  # from scratch; as few as `auto` ever chooses
SECONDS = 6.0  # to time one size


@dataclass(frozen=True)
class Choice:
    """Settings to add to the command, and the resulting time; no settings if the run is short enough without."""

    settings: tuple[str, ...]
    fastest: float
    slowest: float


def best_choice(config: Config, source: Source, device: torch.device, measured: Timing, steps: int) -> Choice:
    """Choose the largest views, then the most epochs, that fit into the limit.

    `measured` is the timing of the views as they are, and `steps` the length of the run as it is.
    """
    if measured.fastest * steps <= LIMIT:
        return Choice((), measured.fastest * steps, measured.slowest * steps)
    enough = min(ENOUGH_EPOCHS, config.epochs)
    for size in sizes_to_try(config):
        settings = size_settings(config, size)
        smaller = config.model_copy(update=settings)
        timing = time_steps(smaller, source, device, seconds=SECONDS) if settings else measured
        steps_per_epoch = make_loader(source, smaller).steps_per_epoch
        epochs = min(config.epochs, int(LIMIT / (timing.fastest * steps_per_epoch)))
        if epochs >= enough:
            break
    epochs = max(epochs, enough)
    if epochs < config.epochs:
        settings["epochs"] = epochs
        if config.warmup_epochs >= epochs:
            settings["warmup_epochs"] = epochs // 10
    steps = epochs * steps_per_epoch
    words = tuple(f"{key}={value}" for key, value in settings.items())
    return Choice(words, timing.fastest * steps, timing.slowest * steps)


def sizes_to_try(config: Config) -> list[int]:
    """Return the size of the global views, and the smaller ones that the encoder accepts."""
    patch = patch_size(build_encoder(config)) or 1
    return [config.global_size, *(size for size in _SIZES if size < config.global_size and size % patch == 0)]


def size_settings(config: Config, size: int) -> dict[str, object]:
    """Return the settings of global views of `size`, with proportional local views; none if they have that size."""
    if size == config.global_size:
        return {}
    values: dict[str, object] = {"global_size": size}
    if config.local_views:
        values["local_size"] = max(8, round(config.local_size * size / config.global_size / 8) * 8)
    if size <= SMALL_IMAGE and config.stem == "auto":
        values["stem"] = "encoder"  # the small stem costs four to sixteen times as much
    return values
