"""What a command is given: settings and images."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from carp.compute import distributed
from carp.compute.device import choose_device
from carp.config import Config, check_keys, resolve
from carp.config.recipe import read_recipe
from carp.console.progress import Display
from carp.images.open_source import open_source
from carp.images.source import Openable, Source
from carp.runs.checkpoint import list_checkpoints
from carp.runs.run_folder import INDEX, open_run
from carp.training.micro_batch import choose_micro_batch


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
    warn_of(source, display)
    auto = values.get("micro_batch") == "auto"
    config = resolve({**values, "micro_batch": None} if auto else values, num_images=len(source))
    config = _with_shards(config, folder)
    return (_with_micro_batch(config, folder) if auto else config), source


def warn_of(source: Source, display: Display | None) -> None:
    """Show once what was passed over when images were looked for."""
    if display is not None:
        for note in source.notes:
            display.warn_once(note)


def join_processes(config: Config) -> None:
    """Where several processes share a run (torchrun), wait for the others; no-op for one alone."""
    timeout = timedelta(minutes=config.timeout_minutes)
    distributed.start(choose_device(config.device), timeout=timeout)


def open_more(data: Openable, config: Config, folder: Path, display: Display) -> Source:
    """Open images beside those of training, with the run's `root` and `download`; what they are, their path says."""
    with display.counting("finding images", None) as progress:
        source = open_source(data, root=config.root, download=config.download, index=folder / INDEX, progress=progress)
    warn_of(source, display)
    return source


def _with_shards(config: Config, folder: Path | None) -> Config:
    """A run keeps the number of shards that it began with, however many processes continue it."""
    if config.prototypes != "sharded" or config.prototype_shards is not None:
        return config
    shards: int | None = distributed.world_size()
    if folder is not None and list_checkpoints(folder / "checkpoints"):
        shards = open_run(folder).config.prototype_shards
    return resolve({**config.model_dump(), "prototype_shards": shards}, num_images=0)  # so that it is checked


def _with_micro_batch(config: Config, folder: Path | None) -> Config:
    """A run keeps the micro-batch it began with, however much memory is free when it continues."""
    if folder is not None and list_checkpoints(folder / "checkpoints"):
        size = open_run(folder).config.micro_batch
    else:
        join_processes(config)
        size = choose_micro_batch(config, choose_device(config.device))
    return config.model_copy(update={"micro_batch": size})
