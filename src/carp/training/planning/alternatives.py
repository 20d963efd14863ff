"""What else could be done with the images: weights as they are, weights that are adapted, training from scratch.

`carp train --dry-run` shows all three with their time on this machine, measured with a few images each.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from carp.config import Config, resolve
from carp.console.addresses import without_secrets
from carp.console.quantities import counted, duration, duration_range
from carp.encoders.load import load
from carp.encoders.packaged import DEFAULT
from carp.encoders.starting_point import settings_with_start
from carp.errors import CarpError
from carp.features.encoding_speed import time_batches
from carp.features.extract import feature_batches
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.images.sources.subset import at_random
from carp.training.planning.best_choice import SECONDS
from carp.training.planning.timing import Timing, time_steps
from carp.training.preparation import settled

_SECONDS = 2.0  # to time an encoder
_SAMPLE = 256  # images


@dataclass(frozen=True)
class Alternative:
    """One way to get an encoder: its name, the command, and its time or why that is unknown."""

    name: str
    command: str
    time: str


def alternatives(
    data: str,
    out: str | Path | None,
    config: Config,
    timing: Timing,
    source: Source,
    device: torch.device,
    overrides: dict[str, Any],
) -> Iterator[Alternative]:
    """Yield the three ways; `timing` is that of the run that was asked for, which is one of them.

    The settings in `overrides` apply to training in either way, except those of a start. Without `out`, each way has a
    folder of its own.
    """
    start = config.start or DEFAULT.name
    images = shlex.quote(without_secrets(data))
    given = {key: value for key, value in overrides.items() if key not in {"start", "start_digest"}}
    settings = "".join(f" {shlex.quote(without_secrets(f'{key}={value}'))}" for key, value in given.items())

    def output(name: str) -> str:
        return f" --out {shlex.quote(str(out or name))}"

    def asked_for() -> str:
        return _of_run(config, timing, source)

    def other(recipe: str, **changes: Any) -> Callable[[], str]:
        def measured() -> str:
            values = settings_with_start(recipe, {**given, **changes})
            found = settled(resolve(values, num_images=len(source)), values, device)
            return _of_run(found, time_steps(found, source, device, seconds=SECONDS), source)

        return measured

    ways: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("no training", f"carp embed {shlex.quote(start)} --data {images}", lambda: _of_features(start, source)),
        (
            "adapt",
            f"carp train {images} --from {shlex.quote(start)}{settings}{output('runs/adapted')}",
            other("adapt", start=start) if config.start is None else asked_for,
        ),
        (
            "from scratch",
            f"carp train {images}{settings}{output('runs/scratch')}",
            asked_for if config.start is None else other("folder"),
        ),
    )
    for name, command, measure in ways:
        try:
            yield Alternative(name, command, measure())
        except (CarpError, torch.OutOfMemoryError) as error:
            yield Alternative(name, command, f"not measured: {error}")


def _of_run(config: Config, timing: Timing, source: Source) -> str:
    steps = make_loader(source, config).steps_per_epoch * config.epochs
    taken = duration_range(timing.fastest * steps, timing.slowest * steps)
    return f"{taken} for {counted(config.epochs, 'epoch')} at {config.global_size} px"


def _of_features(model: str | Path, source: Source) -> str:
    """Time the encoder on some of the images, as `carp embed` would use it."""
    encoder = load(model)
    sample = at_random(source, _SAMPLE, seed=0)
    batches = feature_batches(
        encoder.module,
        sample,
        size=encoder.size,
        device=encoder.device,
        batch_size=16,
        resize=encoder.resize,
        interpolation=encoder.interpolation,
    )
    with pixel_limit(encoder.max_pixels):
        each, _ = time_batches(batches, _SECONDS)
    return f"{duration(each * len(source))} at {encoder.size} px"
