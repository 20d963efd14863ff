"""`carp train`: from a pile of images to an encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from carp.checkpoint import list_checkpoints
from carp.config import Config, check_keys, read_recipe, resolve
from carp.data.decode import pixel_limit
from carp.data.image_size import advice
from carp.data.loader import make_loader
from carp.data.memory import hold_in_memory, is_held
from carp.data.quarantine import Misses, Quarantine
from carp.data.source import Openable, Source, keep_index, open_source
from carp.device import choose_device
from carp.errors import MissingExtraError
from carp.evaluation.validation import make_validation
from carp.report.plots import plot_run
from carp.run_folder import Run, locked, open_run, prepare_run
from carp.training.display import Display
from carp.training.loop import Training
from carp.training.micro_batch import choose_micro_batch
from carp.training.run_log import read_metrics

INDEX = "index"  # in the run folder: what is known of the images, so that they need not be found again


def train(
    data: Openable,
    out: str | Path,
    recipe: str | Path | None = None,
    *,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train an encoder, or continue the run in `out` where it was.

    Args:
        data: A folder of images, a list of paths, tar shards, Parquet files, `torchvision:NAME`, `embedded:shapes`, an
            image array [N, H, W, 3], or any data set with a length and items by number (docs/data.md).
        out: The run folder.
        recipe: Name of a recipe, or a YAML file; `folder` when None.
        quiet: Show nothing.
        **overrides: Any setting of the configuration, as in `key=value` on the command line.

    Returns:
        The finished run.
    """
    folder, display = Path(out), Display(quiet=quiet)
    config, source = open_data(data, recipe, overrides, folder, display)
    device = choose_device(config.device)
    with locked(folder), pixel_limit(config.max_image_pixels):
        prepare_run(folder, config, source)
        keep_index(source, folder / INDEX)
        if note := advice(source, config):
            display.warn(note)
        quarantine = _quarantine(folder, config, len(source), display)
        source = _read(source, config, display, quarantine.add)
        training = Training(config, make_loader(source, config, quarantine), folder, device, display)
        if training.step == training.schedules.num_steps:
            display.say(f"{folder} is finished: all {training.step} steps are done.")
        else:
            validate = None
            if config.validation is not None:
                labelled = open_more(config.validation, config, folder, display)
                keep_index(labelled, folder / INDEX)
                validation = _read(labelled, config, display)
                validate = make_validation(config, source, validation, device, warn=display.warn)
            display.say(_summary(config, len(source), training, device))
            training.run(validate)
            if summary := quarantine.summary():
                display.warn(summary)
        try:
            plot_run(read_metrics(folder / "metrics.jsonl"), config, folder / "plots.png")
        except (MissingExtraError, OSError) as error:  # the run is complete and saved: no reason to fail
            display.warn(f"plots.png was not drawn: {error}")
    return open_run(folder)


def open_data(
    data: Openable,
    recipe: str | Path | None,
    overrides: dict[str, Any],
    folder: Path | None = None,
    display: Display | None = None,
) -> tuple[Config, Source]:
    """The resolved configuration and the images."""
    values = {**read_recipe(recipe or "folder"), **overrides}
    check_keys(values)  # before a large folder is listed
    with (display or Display(quiet=True)).counting("finding images", None) as progress:
        source = open_source(
            data,
            kind=values.get("source", "auto"),
            root=values.get("root"),
            download=values.get("download", False),
            index=folder / INDEX if folder is not None else None,
            progress=progress,
        )
    auto = values.get("micro_batch") == "auto"
    config = resolve({**values, "micro_batch": None} if auto else values, num_images=len(source))
    return (_with_micro_batch(config, folder) if auto else config), source


def open_more(data: Openable, config: Config, folder: Path, display: Display) -> Source:
    """Open images beside those of training, with the run's `root` and `download`; what they are, their path says."""
    with display.counting("finding images", None) as progress:
        return open_source(data, root=config.root, download=config.download, index=folder / INDEX, progress=progress)


def _with_micro_batch(config: Config, folder: Path | None) -> Config:
    """A run keeps the micro-batch it began with, however much memory is free when it continues."""
    if folder is not None and list_checkpoints(folder / "checkpoints"):
        size = open_run(folder).config.micro_batch
    else:
        size = choose_micro_batch(config, choose_device(config.device))
    return config.model_copy(update={"micro_batch": size})


def _quarantine(folder: Path, config: Config, num_images: int, display: Display) -> Quarantine:
    """The bad images of a run. One without a checkpoint is begun anew, maybe with other images, so forget its list."""
    path = folder / "quarantine.jsonl"
    if not list_checkpoints(folder / "checkpoints"):
        path.unlink(missing_ok=True)
    return Quarantine(num_images, config.max_bad_share, path, warn=display.warn)


def _read(
    source: Source, config: Config, display: Display, missed: Callable[[Misses], None] = lambda _: None
) -> Source:
    """The source as the run uses it: small images in memory."""
    if not is_held(config):
        return source
    with display.counting("reading images", len(source)) as counter:
        return hold_in_memory(source, config.global_size, progress=counter, missed=missed)


def _summary(config: Config, num_images: int, training: Training, device: torch.device) -> str:
    """What is about to be trained, in a line."""
    parameters = sum(p.numel() for p in training.model.student.encoder.parameters())
    threads = f" with {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    return (
        f"{counted(num_images, 'image')}, {config.encoder} ({parameters / 1e6:.3g} M parameters), "
        f"{counted(training.schedules.num_steps, 'step')} in {counted(config.epochs, 'epoch')}, {device}{threads}"
    )


def counted(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"
