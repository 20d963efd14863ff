"""`carp train`: from a folder of images to an encoder."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.commands.report_run import PAGE, report_run
from carp.compute import distributed
from carp.compute.device import deterministic, products_in
from carp.config import Config
from carp.console.quantities import counted
from carp.encoders.starting_point import may_shrink, measures_share, read_start
from carp.errors import CarpError, CheckpointError, DataError, MissingExtraError
from carp.evaluation.during_training.label_free import LabelFreeValidation
from carp.evaluation.during_training.start_share import with_measured_start_share
from carp.evaluation.during_training.validation import Validation
from carp.files.outputs import check_output_folder
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.image_size import advice
from carp.images.loading.in_memory import hold_in_memory, is_held, is_readable
from carp.images.loading.loader import make_loader
from carp.images.loading.quarantine import Misses, Quarantine
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.images.sources.subset import held_out
from carp.report.plots import plot_run
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import INDEX, QUARANTINE, Run, config_of, held_run, nothing_left_if_refused, open_run
from carp.training.display import TrainingDisplay
from carp.training.loop import Training
from carp.training.planning.run_check import check_run
from carp.training.planning.time_budget import check_minutes, fit_into
from carp.training.preparation import comparison_problem, open_for_training


def train(
    data: Openable,
    out: str | Path,
    recipe: str | Path | None = None,
    *,
    minutes: float | None = None,
    start: str | Path | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train an encoder, or resume the run in `out` from its newest checkpoint.

    Under torchrun every process calls this function, and they share the work (docs/scaling.md).

    Args:
        data: A folder of images, a list of paths, tar shards, Parquet files, `torchvision:NAME`, `embedded:shapes`, an
            image array [N, H, W, 3], or any dataset with a length and integer indexing (docs/data.md).
        out: The run folder.
        recipe: Name of a recipe, or a YAML file; None is `adapt` with a start, and `folder` without.
        minutes: Time for training: as many epochs as fit into it, at most those of the recipe. A run with a start takes
            smaller views first, unless global_size is set.
        start: Weights to start from: a run folder, or weights in any form (docs/weights.md). The encoder and its images
            follow from them. None starts from random weights, unless the recipe names a start.
        quiet: Print nothing.
        **overrides: Any setting of the configuration, as in `key=value` on the command line.

    Returns:
        The finished run.
    """
    folder, display = Path(out), TrainingDisplay(quiet=quiet or not distributed.is_first())
    check_output_folder(folder)
    overrides |= {} if start is None else {"start": str(start)}
    if minutes is not None:
        check_minutes(minutes, overrides)
    with nothing_left_if_refused(folder):
        config, whole, device = open_for_training(data, recipe, overrides, display, folder)
        source, others = held_out(whole, config.held_out, seed=config.seed)
        check_run(config, source, device)
        if minutes is not None:
            any_size = may_shrink(recipe, overrides)
            config = fit_into(minutes, config, source, device, folder, display, any_size=any_size)
        if measures_share(recipe, overrides):
            config = with_measured_start_share(config, source, device, folder, display)
    with (
        held_run(folder, config, whole),
        pixel_limit(config.max_image_pixels),
        deterministic(config.deterministic),
        products_in(config.precision),
    ):
        if note := advice(source, config, started=config.start is not None):
            display.warn(note)
        quarantine = Quarantine(
            len(source),
            config.max_bad_share,
            folder / QUARANTINE,
            writes=distributed.is_first(),
            warn=display.warn,
        )
        stored, source = source, _in_memory_if_small(source, config, display, quarantine.add)
        loader, weights = make_loader(source, config, quarantine), _starting_weights(config, folder)
        training = Training(config, loader, folder, device, display, start=weights)
        if finished := training.step == training.schedules.num_steps:
            display.say(f"{folder} is finished: all {training.step} steps are done.")
        else:
            validate: Validation | LabelFreeValidation | None = None
            if config.validation is not None:
                validation = _in_memory_if_small(_open_validation(config, folder, display), config, display)
                validate = Validation(config, source, validation, device, warn=display.warn)
            elif problem := comparison_problem(config):
                display.warn(problem)
            elif config.start is not None:
                validate = LabelFreeValidation(config, _in_memory_if_small(others, config, display), device)
            display.say(_summary(config, len(source), training, device))
            training.run(validate)
            if summary := quarantine.summary():
                display.warn(summary)
        if distributed.is_first():
            _plot(folder, config, display)
        if distributed.is_first() and config.report:
            _report(folder, stored, config, display, again=not finished)
        distributed.barrier()
    distributed.stop()  # not after an error: the others would see this process leave before its error is printed
    return open_run(folder)


def _starting_weights(config: Config, folder: Path) -> dict[str, Tensor] | None:
    """The encoder's first weights; None if they are random, or if the run has a checkpoint."""
    if config.start is None or config_of(folder) is not None:
        return None
    point = read_start(config.start)
    if point.digest != config.start_digest:
        raise CheckpointError(f"{config.start} has changed since this command began. Run it again.")
    return point.tensors


def _in_memory_if_small(
    source: Source, config: Config, display: TrainingDisplay, missed: Callable[[Misses], None] = lambda _: None
) -> Source:
    """Read small images into memory; leave photographs where they are."""
    if not is_held(config):
        return source
    with display.counting("reading images", len(source)) as counter:
        held = hold_in_memory(source, config.global_size, progress=counter, missed=missed)
    digests = distributed.gather(hashlib.sha256(is_readable(held).tobytes()).hexdigest())
    for number, digest in enumerate(digests):
        if digest != digests[0]:
            raise DataError(
                f"process {number} cannot read the same images of {source.name} as process 0. Check that the images "
                "and their permissions are the same on all machines."
            )
    return held


def _open_validation(config: Config, folder: Path, display: TrainingDisplay) -> Source:
    assert config.validation is not None
    source = open_images(
        config.validation,
        display,
        root=config.root,
        download=config.download,
        cache_gb=config.cache_gb,
        index=folder / INDEX,
    )
    if distributed.is_first():
        source.keep_index(folder / INDEX)
    return source


def _plot(folder: Path, config: Config, display: TrainingDisplay) -> None:
    try:
        plot_run(read_metrics(folder / "metrics.jsonl", display.warn), config, folder / "plots.png")
    except (MissingExtraError, DataError, KeyError, TypeError, ValueError) as error:
        # The run is complete and saved, so this is not an error of the run
        display.warn(f"plots.png was not drawn: {error}")


def _report(folder: Path, source: Source, config: Config, display: TrainingDisplay, *, again: bool) -> None:
    """Write the page about the run, unless there is one and nothing has been trained since.

    With several processes it shows records alone: embedding images is work that all of them would have to share.
    """
    page, alone = folder / "report" / PAGE, distributed.world_size() == 1
    if page.exists() and not again:
        return
    try:
        report_run(folder, source if alone else None, out=page, device=config.device, quiet=display.console.quiet)
    except (CarpError, KeyError, TypeError, ValueError) as error:
        # The run is complete and saved, so this is not an error of the run
        display.warn(f"report.html was not written: {error}")


def _summary(config: Config, num_images: int, training: Training, device: torch.device) -> str:
    """Return one line about the run that is about to start."""
    parameters = sum(p.numel() for p in training.model.student.encoder.parameters())
    threads = f" with {counted(training.threads.current, 'thread')}" if device.type == "cpu" else ""
    if distributed.world_size() > 1:
        threads += f", {distributed.world_size()} processes"
    start = "" if config.start is None else f" from {config.start}"
    return (
        f"{counted(num_images, 'image')}, {config.encoder} ({parameters / 1e6:.3g} M parameters){start}, "
        f"{counted(training.schedules.num_steps, 'step')} in {counted(config.epochs, 'epoch')}, {device}{threads}"
    )
