"""Time of a run on this machine, measured with a few real steps. Nothing is written."""

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from carp.compute.threads import OtherLoad, available_cores, is_tunable, ladder
from carp.config import Config
from carp.images.loading.in_memory import hold_in_memory, is_held
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.images.sources.subset import Subset
from carp.model.carp import Carp
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

_SECONDS = 20.0  # in total, approximately
_STEPS = 3
_FIRST_IMAGES = 8  # in the first steps, which show how many images are affordable
_FEWEST_IMAGES = 32  # fewer would not represent a whole batch
_IDLE = 0.1  # cores that other programs may use on a machine that counts as idle


@dataclass(frozen=True)
class Timing:
    """Measured times of a step, and how they were measured."""

    fastest: float  # seconds per step if the machine were idle
    slowest: float  # seconds per step under the present load
    steps: int
    images: int  # per step
    threads: int
    others: float  # cores that other programs used meanwhile

    def scaled(self, factor: float) -> Self:
        """Return the times for steps with `factor` times as many images."""
        return replace(self, fastest=self.fastest * factor, slowest=self.slowest * factor)


def time_steps(config: Config, source: Source, device: torch.device, *, seconds: float | None = None) -> Timing:
    """Time a few steps on real images, with fewer images where a whole batch would take too long.

    A step of part of the batch is scaled up in proportion, which is an upper bound: some work, such as the
    optimiser's, is the same whatever the number of images. On a CPU the best number of threads is found first, as
    training does.
    """
    seconds = seconds or _SECONDS
    model = build_model(config, device).train()
    before = torch.get_num_threads()
    counts = ladder(before)[:2] if is_tunable(device) else [before]
    if config.threads != "auto":
        counts = [config.threads]

    def best_of(few: Config, steps: int) -> Timing:
        tried = (_time(model, few, source, device, count, steps=steps, seconds=seconds) for count in counts)
        return min(tried, key=lambda timing: timing.slowest)

    try:
        first = _with_images(config, _FIRST_IMAGES)
        timing = best_of(first, 1)
        affordable = int(seconds / (_STEPS + 1) / len(counts) * first.batch_size / timing.slowest)
        if _FEWEST_IMAGES * timing.slowest <= seconds * first.batch_size:
            affordable = max(affordable, _FEWEST_IMAGES)
        few = first
        if affordable > first.batch_size or first == config:
            few = _with_images(config, max(affordable, first.batch_size))
            timing = best_of(few, max(_STEPS, config.workers))
    finally:
        torch.set_num_threads(before)
    return timing.scaled(config.batch_size / few.batch_size)


def _with_images(config: Config, images: int) -> Config:
    """Limit the batch to `images`; several micro-batches stay several."""
    if images >= config.batch_size:
        return config
    if config.micro_batch is None or config.micro_batch >= config.batch_size:
        return config.model_copy(update={"batch_size": images, "micro_batch": None})
    micro_batch = min(config.micro_batch, images // 2)
    return config.model_copy(update={"batch_size": images // micro_batch * micro_batch, "micro_batch": micro_batch})


def _time(
    model: Carp, config: Config, source: Source, device: torch.device, threads: int, *, steps: int, seconds: float
) -> Timing:
    """Time at most `steps` steps after a first one, which sets things up and is not counted."""
    torch.set_num_threads(threads)
    loader = make_loader(_enough(source, config), config)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, loader.steps_per_epoch), config, device)
    start, ends = time.monotonic(), list[float]()
    load = OtherLoad()
    with closing(loader.batches(0, steps + 1)) as batches:
        for batch in batches:
            stepper(batch)
            ends.append(time.monotonic())
            if len(ends) > 1 and ends[-1] - start > seconds:
                break
        others = load.cores()  # while the workers still exist, so that they do not count as other programs
    taken, cores = np.diff(ends), available_cores()
    # Other programs take part of the time that an idle machine would give to the step
    idle_share = 1.0 if others < _IDLE else max(1.0, cores - others) / cores
    return Timing(
        fastest=float(taken.min() if others >= _IDLE else taken.mean()) * idle_share,
        slowest=float(taken.mean()),
        steps=len(taken),
        images=config.batch_size,
        threads=threads,
        others=others,
    )


def _enough(source: Source, config: Config) -> Source:
    """Limit small images, which are read into memory, to one batch."""
    if not is_held(config):
        return source
    indices = np.linspace(0, len(source) - 1, config.batch_size).astype(np.int64)
    return hold_in_memory(Subset(source, indices), config.global_size)
