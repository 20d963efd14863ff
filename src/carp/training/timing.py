"""How long a run will take here: a few steps are taken and timed. Nothing is written."""

import time
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch

from carp.config import Config
from carp.data.loader import make_loader
from carp.data.memory import hold_in_memory, is_held
from carp.data.part import Part
from carp.data.source import Source
from carp.model.carp import Carp
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

_SECONDS = 20.0  # for everything, about
_STEPS = 3
_FIRST_IMAGES = 8  # of the steps that tell how many images can be afforded


@dataclass(frozen=True)
class Timing:
    """What was measured."""

    seconds: float  # for one step
    steps: int
    images: int  # in each of these steps


def time_steps(config: Config, source: Source, device: torch.device) -> Timing:
    """Time a few steps on real images, with fewer of them where a whole batch would take too long.

    A step of a part of the batch is scaled up in proportion, which is an upper bound: some work, such as the
    optimiser's, is the same whatever the number of images.
    """
    model = build_model(config, device).train()
    few = _with_images(config, _FIRST_IMAGES)
    timing = _time(model, few, source, device, steps=1)
    affordable = int(_SECONDS / (_STEPS + 1) * few.batch_size / timing.seconds)
    if affordable > few.batch_size or few == config:
        few = _with_images(config, affordable)
        timing = _time(model, few, source, device, steps=max(_STEPS, config.workers))
    return replace(timing, seconds=timing.seconds * config.batch_size / few.batch_size)


def _with_images(config: Config, images: int) -> Config:
    """The configuration with at most `images` in a batch, and still several micro-batches if it had several."""
    if images >= config.batch_size:
        return config
    if config.micro_batch is None or config.micro_batch >= config.batch_size:
        return config.model_copy(update={"batch_size": images, "micro_batch": None})
    micro_batch = min(config.micro_batch, images // 2)
    return config.model_copy(update={"batch_size": images // micro_batch * micro_batch, "micro_batch": micro_batch})


def _time(model: Carp, config: Config, source: Source, device: torch.device, *, steps: int) -> Timing:
    """Time at most `steps` steps after a first one, which sets things up and is not counted."""
    loader = make_loader(_enough(source, config), config)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, loader.steps_per_epoch), config, device)
    start, ends = time.monotonic(), list[float]()
    with closing(loader.batches(0, steps + 1)) as batches:
        for batch in batches:
            stepper(batch)
            ends.append(time.monotonic())
            if len(ends) > 1 and ends[-1] - start > _SECONDS:
                break
    timed = len(ends) - 1
    return Timing((ends[-1] - ends[0]) / timed, timed, config.batch_size)


def _enough(source: Source, config: Config) -> Source:
    """What a few steps need: of small images, which are held in memory, one batch is enough."""
    if not is_held(config):
        return source
    indices = np.linspace(0, len(source) - 1, config.batch_size).astype(np.int64)
    return hold_in_memory(Part(source, indices), config.global_size)


def in_words(seconds: float) -> str:
    """A duration as a person would say it."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"
