"""Prepares a run: its images, and the settings that depend on them and on the machine."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from carp.compute import distributed
from carp.compute.device import best_precision, check_precision, choose_device
from carp.config import Config, DataSettings, resolve, resolve_part
from carp.console.progress import Display
from carp.encoders.starting_point import settings_with_start
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.model.koleo import STRONGEST_FREE_KOLEO
from carp.runs.run_folder import INDEX, config_of, locked
from carp.training.micro_batch import choose_micro_batch


def open_for_training(
    data: Openable,
    recipe: str | Path | None,
    overrides: dict[str, Any],
    display: Display,
    folder: Path | None = None,
) -> tuple[Config, Source, torch.device]:
    """Open the images and resolve the configuration and the device for them.

    From here on several processes (torchrun) are connected to each other. The first one finds the images while the
    others wait; these then use its index, if they see the same folder. A run in `folder` that has a checkpoint keeps
    the settings that depend on the machine it began on.
    """
    begun = config_of(folder)
    values = settings_with_start(recipe, overrides, begun, folder)  # before a large folder is listed
    where = resolve_part(DataSettings, values)
    index = None if folder is None else folder / INDEX

    def find() -> tuple[Config, Source]:
        source = open_images(
            data,
            display,
            kind=where.source,
            root=where.root,
            download=where.download,
            cache_gb=where.cache_gb,
            index=index,
        )
        config = resolve(values, num_images=len(source))
        if folder is not None and distributed.is_first() and distributed.world_size() > 1:
            with locked(folder):  # another run may be using its index
                source.keep_index(folder / INDEX)
        return config, source

    config, source = distributed.first_before_others(find)
    device = choose_device(config.device)
    check_precision(config.precision, device)
    distributed.start(device, timeout=timedelta(minutes=config.timeout_minutes))
    if config.precision == "bf16" and best_precision(device) == "fp32" and device.type == "cpu":
        display.warn("this processor only emulates bf16, which is much slower than fp32. Use precision=auto or fp32.")
    if config.koleo_weight > STRONGEST_FREE_KOLEO and config.embedding_length is None:
        display.warn(
            f"koleo_weight {config.koleo_weight:g} with embeddings of free length can keep a run from learning. Set "
            f"embedding_length, for example to {2 * config.embedding**0.5:.3g}, or a weight of at most "
            f"{STRONGEST_FREE_KOLEO:g}."
        )
    if config.prototypes == "sharded" and config.prototype_shards is None:
        shards = distributed.world_size() if begun is None else begun.prototype_shards
        config = resolve({**config.model_dump(), "prototype_shards": shards}, num_images=0)  # so that it is checked
    return settled(config, values, device, begun), source, device


def comparison_problem(config: Config) -> str | None:
    """Return why a run cannot be compared with its start; None if it can, or if it has no start."""
    if config.start is None or config.validation is not None or config.held_out > 1:
        return None
    return (
        "this run is not compared with its start, as there are too few images to hold some out. Give labelled images "
        "with --val, or set held_out."
    )


def settled(config: Config, values: Mapping[str, Any], device: torch.device, begun: Config | None = None) -> Config:
    """Replace every `auto` that depends on the machine; a run that has begun keeps its own values."""
    if values.get("precision") == "auto":
        precision = distributed.gather(best_precision(device))[0] if begun is None else begun.precision
        config = config.model_copy(update={"precision": precision})
    if values.get("micro_batch") == "auto":
        size = choose_micro_batch(config, device) if begun is None else begun.micro_batch
        config = config.model_copy(update={"micro_batch": size})
    return config
