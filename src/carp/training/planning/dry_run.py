"""`carp train --dry-run`: what a run would do and which resources it needs. Nothing is written."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch

from carp.compute.threads import available_cores, chosen_by_user
from carp.config import SMALL_IMAGE, Config
from carp.config.recipe import to_yaml
from carp.console.progress import Display
from carp.console.quantities import counted, duration_range
from carp.encoders.starting_point import may_shrink, measures_share
from carp.errors import CarpError
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.image_size import advice
from carp.images.labels import single_labels
from carp.images.loading.loader import make_loader
from carp.images.open_source import open_source
from carp.images.source import Openable, Source
from carp.images.sources.subset import held_out
from carp.training.planning.alternatives import alternatives
from carp.training.planning.best_choice import best_choice
from carp.training.planning.estimate import Estimate, estimate
from carp.training.planning.memory_check import memory_for_training, memory_problem
from carp.training.planning.time_budget import budget, check_minutes
from carp.training.planning.timing import Timing, time_steps
from carp.training.preparation import comparison_problem, open_for_training
from carp.training.schedules import Schedules

_COMPARED = (None, "adapt", "folder", "photos-cpu")  # recipes for one's own images, which leave a choice


def dry_run(
    data: Openable,
    recipe: str | Path | None = None,
    *,
    out: str | Path | None = None,
    minutes: float | None = None,
    **overrides: Any,
) -> Iterator[str]:
    """Yield lines that describe what `train` would do: configuration, parameters, steps, memory and measured time."""
    if minutes is not None:
        check_minutes(minutes, overrides)
    config, source, device = open_for_training(data, recipe, overrides, Display())
    if config.validation is not None:
        single_labels(
            open_source(config.validation, root=config.root, download=config.download, cache_gb=config.cache_gb),
            "validation by k-NN",
        )
    needs = estimate(config)
    whole = source
    source, _ = held_out(source, config.held_out, seed=config.seed)
    steps_per_epoch = make_loader(source, config).steps_per_epoch
    steps = Schedules(config, steps_per_epoch).num_steps
    measures = measures_share(recipe, overrides)
    unknown = (["start_share"] if measures else []) + (["epochs"] if minutes is not None else [])
    for line in to_yaml(config).rstrip().split("\n"):
        key = line.split(":")[0]
        yield f"{key}: auto" if key in unknown else line
    yield "---"
    held = f", {config.held_out:,} of them held out" if config.held_out else ""
    yield f"images                {len(whole):,} in {source.name}{held}"
    yield f"classes               {len(source.classes) or 'no labels'}"
    yield f"steps                 {'at most ' if minutes is not None else ''}{steps:,} ({steps_per_epoch:,} per epoch)"
    yield f"device                {device}{_cores(config, device)}"
    yield f"stem                  {_stem(config, needs)}"
    yield f"encoder parameters    {needs.encoder_parameters:,}"
    yield f"projector parameters  {needs.projector_parameters:,}"
    yield f"prototype parameters  {needs.prototype_parameters:,}"
    yield f"memory, weights       {_gigabytes(needs.weights_bytes)} (student, teacher, gradients, optimiser)"
    yield f"memory, activations   {_gigabytes(needs.activation_bytes)}"
    yield f"memory, head          {_gigabytes(needs.head_bytes)}"
    if needs.views_bytes:
        yield f"memory, views         {_gigabytes(needs.views_bytes)} (two steps)"
    free = memory_for_training(device)
    yield f"memory in total       {_gigabytes(needs.total_bytes)} (estimate; {_gigabytes(free)} is free)"
    if problem := memory_problem(config, needs, free):
        yield f"warning               {problem}"
    if note := advice(source, config, started=config.start is not None):
        yield f"warning               {note}"
    if note := comparison_problem(config):
        yield f"warning               {note}"
    if measures:
        yield f"start_share           measured before the first step: 0.5 if {config.start} knows the images, else 0"
    if needs.total_bytes > free:
        needed = f"{_gigabytes(needs.total_bytes)} is needed, but only {_gigabytes(free)} is free"
        yield f"time                  not measured: {needed}"
    else:
        any_size = may_shrink(recipe, overrides)
        timing = yield from _time(config, source, device, steps, minutes, any_size=any_size)
        if timing is not None and recipe in _COMPARED:
            name = str(data) if isinstance(data, str | Path) else "IMAGES"
            for way in alternatives(name, out, config, timing, source, device, overrides):
                yield f"{way.name:<21} {way.time}: {way.command}"


def _cores(config: Config, device: torch.device) -> str:
    if device.type != "cpu":
        return ""
    if config.threads != "auto" or chosen_by_user() is not None:
        return f", {counted(torch.get_num_threads() if config.threads == 'auto' else config.threads, 'thread')}"
    return f", {counted(available_cores(), 'core')}"


def _stem(config: Config, needs: Estimate) -> str:
    """Describe the first layers, and why they are used."""
    size = f"global_size {config.global_size}"
    if needs.small_stem:
        small = f"small (3×3, stride {config.stem_stride}, no pooling)"
        if config.stem == "small":
            return f"{small}, as set"
        return f"{small}, because {size} <= {SMALL_IMAGE}; stem=encoder keeps the encoder's own, which is cheaper"
    if config.stem == "encoder":
        return "the encoder's own, as set"
    reason = f"{size} > {SMALL_IMAGE}" if config.global_size > SMALL_IMAGE else f"{config.encoder} is not a ResNet"
    return f"the encoder's own, because {reason}"


def _time(
    config: Config, source: Source, device: torch.device, steps: int, minutes: float | None, *, any_size: bool
) -> Generator[str, None, Timing | None]:
    """Measure how long the run will take, and suggest settings if that is long; return the time of a step."""
    try:
        with pixel_limit(config.max_image_pixels):
            timing = time_steps(config, source, device)
            yield f"time                  {_measured(config, timing, device, steps)}"
            if minutes is not None:
                found = budget(minutes, config, source, device, any_size=any_size, first=timing)
                fits = f"{found.epochs:,} of {counted(config.epochs, 'epoch')}"
                size = "".join(f" with {key}={value}" for key, value in found.size.items())
                yield f"{f'in {minutes:g} min':<21} {fits if found.epochs else 'less than one epoch'}{size}"
                return timing
            choice = best_choice(config, source, device, timing, steps)
    except (CarpError, torch.OutOfMemoryError) as error:
        yield f"time                  not measured: {error}"
        return None
    best = "the settings as they are"
    if choice.settings:
        best = f"{' '.join(choice.settings)}: {duration_range(choice.fastest, choice.slowest)}"
    yield f"best choice here      {best}"
    return timing


def _measured(config: Config, timing: Timing, device: torch.device, steps: int) -> str:
    where = f"{device} with {counted(timing.threads, 'thread')}" if device.type == "cpu" else str(device)
    measured = f"measured over {counted(timing.steps, 'step')}"
    if timing.images < config.batch_size:
        measured += f" of {timing.images} images, scaled to {config.batch_size:,},"
    apart = [word for word, is_so in (("compile", config.compile), ("k-NN", config.validation is not None)) if is_so]
    without = f"; without {' and '.join(apart)}" if apart else ""
    busy = f"; other programs use {timing.others:.1f} cores, the first figure is for an idle machine"
    return (
        f"{'about' if timing.images == config.batch_size else 'at most'} "
        f"{duration_range(timing.fastest * steps, timing.slowest * steps)} "
        f"({duration_range(timing.fastest, timing.slowest)} per step, {measured} on {where}{without}"
        f"{busy if timing.others >= 0.1 else ''})"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
