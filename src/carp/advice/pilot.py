"""A pilot: a few minutes of training in a temporary folder, measured like the encoders without training.

A pilot trains on images that the measurements do not use. Where the time does not suffice for all images, it trains on
a random part of them for at least a few epochs, with smaller views if need be.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from carp.advice.encoder_probes import Candidate, Probe, ProbeImages, load_model, probe, renamed
from carp.advice.resampling import Interval, difference
from carp.advice.training_plan import open_plan, recipe_for
from carp.console.quantities import counted, duration
from carp.errors import CarpError, Interrupted
from carp.images.source import Source
from carp.images.sources.subset import Subset, at_random
from carp.runs.run_folder import Run
from carp.training.planning.best_choice import size_settings, sizes_to_try
from carp.training.planning.time_budget import FOR_STEPS
from carp.training.planning.timing import time_steps

_EPOCHS = 5  # at least, so that every image is seen more than once
_ENOUGH_IMAGES = 1000  # a pilot on fewer prefers smaller views
_FEWEST_IMAGES = 64
_SECONDS = 4.0  # to time one size
_OVERHEAD = 20.0  # seconds, in which training measures its own steps
SCRATCH = "from scratch"

Train = Callable[..., Run]


@dataclass(frozen=True)
class PilotPlan:
    """What fits into the time."""

    start: str | None
    recipe: str | None
    settings: dict[str, Any]
    size: int
    images: int
    enough: bool
    """Whether the pilot sees enough images to speak for a run."""


@dataclass(frozen=True)
class PilotRun:
    """A finished pilot."""

    name: str
    start: str | None
    images: int
    epochs: int
    size: int
    """The side of the views that it trained on, at which it is compared with its start."""
    seconds: float
    enough: bool
    """Whether it saw enough images to speak for a run."""
    probe: Probe
    views_change: Interval | None
    """Against the start as it is, on the same images at the same size; None from scratch, if there is no model."""
    knn_change: Interval | None

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        changes = {"views_change": self.views_change, "knn_change": self.knn_change}
        return {
            **{key: getattr(self, key) for key in ("start", "images", "epochs", "enough", "seconds")},
            **self.probe.as_dict(),
            "trained_size": self.size,
            **{key: None if change is None else asdict(change) for key, change in changes.items()},
        }

    def text(self) -> str:
        """Describe the pilot."""
        seen = f"{counted(self.epochs, 'epoch')} on {counted(self.images, 'image')} at {self.size} pixels"
        return f"{self.name}: {seen}, {duration(self.seconds)}"


@dataclass(frozen=True)
class Pilots:
    """All pilots, and why others were not run."""

    runs: list[PilotRun]
    notes: list[str]


def run_pilots(
    train: Train,
    source: Source,
    images: ProbeImages,
    best: Probe | None,
    *,
    minutes: float,
    side: int,
    device: str,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
) -> Pilots:
    """Train from the best model and, if the time allows, from scratch; measure what became of it.

    Args:
        train: The function behind `carp train`.
        source: All images.
        images: Those that encoders are measured on.
        best: The model to start from, as it was measured; None if there is no model.
        minutes: The time for all pilots.
        side: The shorter side of a typical image.
        device: Where to train.
        folder: An empty folder for the runs.
        say: Prints a line as each pilot begins.
    """
    rest = without(source, images)
    if len(rest) < _FEWEST_IMAGES:
        few = f"{counted(len(rest), 'image')} to train on besides those that are measured"
        return Pilots([], [f"not run: {few}; a pilot needs at least {_FEWEST_IMAGES}."])
    found, notes = list[PilotRun](), list[str]()
    starts: list[str | None] = [None] if best is None else [best.name, None]
    while starts:
        start = starts.pop(0)
        name = SCRATCH if start is None else f"{start}, adapted"
        try:
            share = minutes if best is None else minutes / 2
            timed = time_sizes(rest, start, best, share, side, device)
            if starts and not timed.plan(share).enough:
                starts.clear()
                share = minutes
                notes.append(f"{SCRATCH}: not run, as {minutes:g} minutes are too few for two pilots on this machine.")
            plan = timed.plan(share)
            if plan.images < _FEWEST_IMAGES:
                needed = minutes * max(2.0, _FEWEST_IMAGES / max(plan.images, 1))
                notes.append(
                    f"{name}: not run, as {share:g} minutes suffice for {counted(plan.images, 'image')} only; give "
                    f"--pilot {needed:.2g} or more."
                )
                continue
            say(f"pilot: {name}, {counted(plan.images, 'image')} at {plan.size} pixels, about {duration(60 * share)}")
            found.append(_run(train, rest, plan, images, best, name, share, device, folder / f"pilot-{len(found)}"))
        except Interrupted:
            raise
        except CarpError as error:  # a run that collapsed, or has no memory: the advice says so
            notes.append(f"{name}: failed: {error}")
    return Pilots(found, notes)


def without(source: Source, images: ProbeImages) -> Subset:
    """Return the images of a source that no measurement uses."""
    return Subset(source, np.setdiff1d(np.arange(len(source)), images.used))


@dataclass(frozen=True)
class TimedSizes:
    """Sizes of views, the largest first, and the seconds per image that training takes with each."""

    start: str | None
    recipe: str | None
    settings: dict[str, Any]
    sizes: list[tuple[int, dict[str, Any], float]]
    """Side, settings that follow from it, seconds."""
    images: int
    """That there are to train on."""

    def plan(self, minutes: float) -> PilotPlan:
        """Choose the largest views at which enough images are seen for a few epochs; otherwise the smallest."""
        wanted = min(self.images, _ENOUGH_IMAGES)
        fitting = next((timed for timed in self.sizes if _affordable(minutes, timed[2]) >= wanted), self.sizes[-1])
        side, changed, each = fitting
        images = min(self.images, _affordable(minutes, each))
        settings = {**self.settings, "global_size": side, **changed}
        return PilotPlan(self.start, self.recipe, settings, side, images, images >= wanted)


def time_sizes(
    source: Source, start: str | None, best: Probe | None, minutes: float, side: int, device: str
) -> TimedSizes:
    """Time smaller and smaller views, until enough images are seen in this time."""
    size = None if best is None or start is None else best.size
    config, images, where = open_plan(source, start=start, side=side, size=size, device=device)
    sizes = list[tuple[int, dict[str, Any], float]]()
    for views in sizes_to_try(config):
        changed = size_settings(config, views)
        smaller = config.model_copy(update=changed)
        each = time_steps(smaller, images, where, seconds=_SECONDS).slowest / smaller.batch_size
        sizes.append((views, changed, each))
        if _affordable(minutes, each) >= min(len(source), _ENOUGH_IMAGES):
            break
    return TimedSizes(start, *recipe_for(side, start), sizes, len(source))


def _affordable(minutes: float, each: float) -> int:
    """The number of images that training sees often enough in this time."""
    return int(max(0.0, 60 * minutes * FOR_STEPS - _OVERHEAD) / _EPOCHS / each)


def _run(
    train: Train,
    source: Subset,
    plan: PilotPlan,
    images: ProbeImages,
    best: Probe | None,
    name: str,
    minutes: float,
    device: str,
    folder: Path,
) -> PilotRun:
    begin = time.monotonic()
    run = train(
        at_random(source, plan.images, seed=3),
        folder,
        plan.recipe,
        start=plan.start,
        minutes=minutes,
        quiet=True,
        **{**plan.settings, "device": device, "held_out": 0, "report": False},
    )
    seconds = time.monotonic() - begin
    size = run.config.global_size
    measured = _measured(renamed(load_model(run.folder, None, device), name), images)
    if best is not None and plan.start is not None and best.size != size:
        # Another size alone changes what is measured, so the start is measured at the size of the pilot, too
        best = _measured(load_model(plan.start, size, device), images)
    knn_change = None
    if best is not None and best.right_M is not None and measured.right_M is not None:
        knn_change = difference(measured.right_M, best.right_M)
    return PilotRun(
        name,
        plan.start,
        plan.images,
        run.config.epochs,
        size,
        seconds,
        plan.enough,
        measured,
        None if best is None else difference(measured.hits_M, best.hits_M),
        knn_change,
    )


def _measured(candidate: Candidate, images: ProbeImages) -> Probe:
    device = next(candidate.module.parameters()).device
    return probe(candidate, images, device, lambda _done, _all: None)
