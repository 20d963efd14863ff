"""`carp train`: from a pile of images to an encoder."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from carp.commands.inputs import join_processes, open_data, open_more
from carp.compute import distributed
from carp.compute.device import choose_device
from carp.config import FREE_KEYS, Config
from carp.console.progress import Display
from carp.console.quantities import counted
from carp.errors import ConfigError, DataError, MissingExtraError
from carp.evaluation.validation import Validation
from carp.files.outputs import check_output_folder
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.image_size import advice
from carp.images.loading.in_memory import hold_in_memory, is_held, is_readable
from carp.images.loading.loader import make_loader
from carp.images.loading.order import check_batch_size
from carp.images.loading.quarantine import Misses, Quarantine
from carp.images.source import Openable, Source
from carp.report.plots import plot_run
from carp.runs.checkpoint import list_checkpoints
from carp.runs.run_folder import INDEX, Run, locked, open_run, prepare_run
from carp.runs.run_log import read_metrics
from carp.runs.run_threads import NAME as THREADS
from carp.training.display import TrainingDisplay
from carp.training.loop import Training
from carp.training.micro_batch import check_division
from carp.training.planning.memory_check import check_memory


def train(
    data: Openable,
    out: str | Path,
    recipe: str | Path | None = None,
    *,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train an encoder, or continue the run in `out` where it was.

    Under torchrun every process calls this, and they share the work (docs/scaling.md).

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
    folder, display = Path(out), TrainingDisplay(quiet=quiet or not distributed.is_first())
    check_output_folder(folder)
    config, source = open_data(data, recipe, overrides, folder, display)
    device = choose_device(config.device)
    join_processes(config)
    check_division(config)
    check_batch_size(len(source), config.batch_size)
    check_memory(config, device)
    _check_alike(config, source)
    with _prepared(folder, config, source), pixel_limit(config.max_image_pixels):
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
                if distributed.is_first():
                    labelled.keep_index(folder / INDEX)
                validation = _read(labelled, config, display)
                validate = Validation(config, source, validation, device, warn=display.warn)
            display.say(_summary(config, len(source), training, device))
            training.run(validate)
            if summary := quarantine.summary():
                display.warn(summary)
        if distributed.is_first():
            _plot(folder, config, display)
        distributed.barrier()
    distributed.stop()  # not after an error: the others would notice before it is told
    return open_run(folder)


@contextmanager
def _prepared(folder: Path, config: Config, source: Source) -> Iterator[None]:
    """The run folder, made or checked and held by the first process; the others wait for it."""
    with locked(folder) if distributed.is_first() else nullcontext():
        if distributed.is_first():
            prepare_run(folder, config, source)
            source.keep_index(folder / INDEX)
            if not list_checkpoints(folder / "checkpoints"):  # begun anew, maybe with other images
                for name in (_quarantine_path(folder), folder / THREADS):
                    name.unlink(missing_ok=True)
        distributed.barrier()
        yield


def _check_alike(config: Config, source: Source) -> None:
    """All processes must see the same settings and images, or they would not train the same model."""
    settings = config.model_dump_json(exclude=set(FREE_KEYS))
    told = distributed.gather([settings, source.fingerprint, len(source)])
    for number, (other, *images) in enumerate(told):
        if images != told[0][1:]:
            raise DataError(
                f"{source.name} is not the same for all processes: {told[0][2]} images for process 0, {images[1]} for "
                f"process {number}{', other names or contents' if images[1] == told[0][2] else ''}."
            )
        if other != told[0][0]:
            raise ConfigError(f"process {number} was started with other settings than process 0. Give all the same.")


def _plot(folder: Path, config: Config, display: Display) -> None:
    try:
        plot_run(read_metrics(folder / "metrics.jsonl", display.warn), config, folder / "plots.png")
    except (MissingExtraError, OSError, KeyError, TypeError, ValueError) as error:
        # The run is complete and saved: no reason to fail
        display.warn(f"plots.png was not drawn: {error}")


def _quarantine_path(folder: Path) -> Path:
    return folder / "quarantine.jsonl"


def _quarantine(folder: Path, config: Config, num_images: int, display: Display) -> Quarantine:
    """The bad images of a run."""
    path = _quarantine_path(folder)
    return Quarantine(num_images, config.max_bad_share, path, writes=distributed.is_first(), warn=display.warn)


def _read(
    source: Source, config: Config, display: Display, missed: Callable[[Misses], None] = lambda _: None
) -> Source:
    """The source as the run uses it: small images in memory."""
    if not is_held(config):
        return source
    with display.counting("reading images", len(source)) as counter:
        held = hold_in_memory(source, config.global_size, progress=counter, missed=missed)
    digests = distributed.gather(hashlib.sha256(is_readable(held).tobytes()).hexdigest())
    for number, digest in enumerate(digests):
        if digest != digests[0]:
            raise DataError(
                f"process {number} cannot read the same images of {source.name} as process 0. Check that the images "
                "and the right to read them are the same on all machines."
            )
    return held


def _summary(config: Config, num_images: int, training: Training, device: torch.device) -> str:
    """What is about to be trained, in a line."""
    parameters = sum(p.numel() for p in training.model.student.encoder.parameters())
    threads = f" with {counted(training.threads.current, 'thread')}" if device.type == "cpu" else ""
    if distributed.world_size() > 1:
        threads += f", {distributed.world_size()} processes"
    return (
        f"{counted(num_images, 'image')}, {config.encoder} ({parameters / 1e6:.3g} M parameters), "
        f"{counted(training.schedules.num_steps, 'step')} in {counted(config.epochs, 'epoch')}, {device}{threads}"
    )
