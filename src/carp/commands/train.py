"""`carp train`: from a pile of images to an encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from carp.checkpoint import list_checkpoints
from carp.commands.inputs import INDEX, open_data, open_more
from carp.config import Config
from carp.data.decode import pixel_limit
from carp.data.image_size import advice
from carp.data.loader import make_loader
from carp.data.memory import hold_in_memory, is_held
from carp.data.quarantine import Misses, Quarantine
from carp.data.source import Openable, Source, keep_index
from carp.device import choose_device
from carp.errors import MissingExtraError
from carp.evaluation.validation import make_validation
from carp.report.plots import plot_run
from carp.run_folder import Run, locked, open_run, prepare_run
from carp.training.display import Display
from carp.training.loop import Training
from carp.training.run_log import read_metrics


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
