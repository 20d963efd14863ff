"""The training that is advised: its command, and its time on this machine, measured with real steps."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from carp.config import SMALL_IMAGE, Config
from carp.console.addresses import without_secrets
from carp.console.progress import Display
from carp.console.quantities import counted, duration, duration_range
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.images.sources.subset import held_out
from carp.training.planning.best_choice import ENOUGH_EPOCHS
from carp.training.planning.time_budget import FOR_STEPS, Budget, budget
from carp.training.preparation import open_for_training

MINUTES = 60.0  # for a first run, unless you say otherwise
_OUT = "runs/advised"


@dataclass(frozen=True)
class TrainingPlan:
    """A run that fits into the time that you have."""

    command: str
    epochs: int
    """That fit into the time."""
    recipe_epochs: int
    epoch_seconds: tuple[float, float]
    """If the machine were idle, and under its present load."""
    size: int
    images: int
    minutes: float

    @property
    def seconds(self) -> tuple[float, float]:
        """The expected time of the run: on an idle machine, and under the present load but within the limit."""
        low, high = (self.epochs * each for each in self.epoch_seconds)
        return low, max(low, min(high, 60 * self.minutes))

    @property
    def caution(self) -> str | None:
        """A note if only a few epochs fit into the time."""
        enough = min(ENOUGH_EPOCHS, self.recipe_epochs)
        if self.epochs >= enough:
            return None
        needed = duration(enough * self.epoch_seconds[1] / FOR_STEPS)
        return (
            f"only {counted(self.epochs, 'epoch')} fit into {self.minutes:g} minutes on this machine, which is little: "
            f"{enough} epochs take about {needed}. Give more --minutes, or use a faster machine."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        return {**asdict(self), "seconds": self.seconds}

    def text(self) -> str:
        """Describe the expected time."""
        length = f"{counted(self.epochs, 'epoch')} of {duration_range(*self.epoch_seconds)}"
        of = "" if self.epochs == self.recipe_epochs else f" of the {self.recipe_epochs} in the recipe"
        return (
            f"about {duration_range(*self.seconds)}: {length}{of}, on {counted(self.images, 'image')} at {self.size} "
            "pixels, measured with real steps on this machine"
        )


def training_command(
    data: object,
    *,
    start: str | None,
    recipe: str | None,
    validation: object = None,
    minutes: float,
    settings: Sequence[str],
) -> str:
    """Return the command that trains as advised, ready to copy. This is the only place that writes it."""
    words = ["carp", "train", named(data)]
    words += ["--from", start] if start is not None else []
    words += ["--val", named(validation, "LABELLED")] if validation is not None else []
    words += ["--recipe", recipe] if recipe is not None else []
    return shlex.join([*words, "--minutes", f"{minutes:g}", *settings, "--out", _OUT])


def named(data: object, otherwise: str = "IMAGES") -> str:
    """Return images as a command names them: addresses without their secrets, Python objects by another word."""
    return without_secrets(str(data)) if isinstance(data, str | Path) else otherwise


def recipe_for(side: int, start: str | None) -> tuple[str | None, dict[str, Any]]:
    """Return the recipe, None for the default one, and settings beside it, for images of this shorter side."""
    if start is None and 0 < side <= SMALL_IMAGE:
        return "small-images", {"global_size": max(8, side)}
    return None, {}


def open_plan(
    source: Source, *, start: str | None, side: int, size: int | None, device: str
) -> tuple[Config, Source, torch.device]:
    """Resolve the settings of a run on these images, as training does."""
    recipe, settings = recipe_for(side, start)
    settings |= {} if start is None else {"start": start}
    settings |= {} if size is None else {"global_size": size}
    config, source, where = open_for_training(source, recipe, {**settings, "device": device}, Display(quiet=True))
    return config, held_out(source, config.held_out, seed=config.seed)[0], where


def plan_training(
    data: object,
    source: Source,
    *,
    start: str | None,
    side: int,
    size: int | None,
    minutes: float | None,
    device: str,
    validation: object = None,
    root: str | Path | None = None,
) -> TrainingPlan:
    """Choose the largest views at which enough epochs fit into the time, and write the command.

    Args:
        data: The images as they were given.
        source: The same images, opened.
        start: Weights to start from; None for random ones.
        side: The shorter side of a typical image.
        size: The side of the views to begin with; None is that of the recipe or the weights.
        minutes: The time that you have; None is an hour.
        device: Where to train.
        validation: Labelled images as they were given, for the command.
        root: Folder of datasets, for the command.
    """
    config, images, where = open_plan(source, start=start, side=side, size=size, device=device)
    limit = MINUTES if minutes is None else minutes
    fitting = budget(limit, config, images, where, any_size=True)
    epoch = _epoch(fitting, config, images)
    if fitting.epochs < 1:  # more than you have: the least that works
        limit = max(limit, ceil(epoch[1] / 60 / FOR_STEPS))
    recipe, settings = recipe_for(side, start)
    chosen = {**settings, **({} if size is None else {"global_size": size}), **({} if root is None else {"root": root})}
    words = [f"{key}={value}" for key, value in {**chosen, **fitting.size}.items()]
    command = training_command(data, start=start, recipe=recipe, validation=validation, minutes=limit, settings=words)
    return TrainingPlan(
        command,
        max(1, fitting.epochs),
        config.epochs,
        epoch,
        int(str(fitting.size.get("global_size", config.global_size))),
        len(images),
        limit,
    )


def _epoch(fitting: Budget, config: Config, images: Source) -> tuple[float, float]:
    steps = make_loader(images, config).steps_per_epoch
    return fitting.timing.fastest * steps, fitting.timing.slowest * steps


def embedding_time(seconds: float, images: int) -> str:
    """Describe how long an encoder takes for all images."""
    return f"about {duration(seconds * images)} to embed {counted(images, 'image')}, measured here without training"
