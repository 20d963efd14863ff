"""What is examined: a recipe, images, a device and the folder of the planned run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carp.compute.device import check_precision, choose_device
from carp.config import Config, DeviceSettings, SizeSettings, resolve, resolve_part
from carp.config.recipe import read_settings
from carp.console.progress import Display
from carp.errors import ConfigError
from carp.images.source import Openable, Source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import Subset
from carp.training.preparation import open_for_training, settled

_GENERATED = 8  # images of noise, repeated as often as a batch needs
# Limits in checks that do not measure memory or time. 112 is a multiple of the usual patch sizes, 14 and 16.
_PROTOTYPES, _LOCAL_VIEWS, _SIDE_ON_CPU = 2048, 2, 112
_PROCESSES = 2  # on a machine without several GPUs


@dataclass
class Subject:
    """The planned run, and what earlier checks have measured for later ones.

    Attributes:
        config: The settings of the run.
        images: The images given by the user, or noise of the size of the views.
        given: Whether the user gave the images.
        device: The device of the run.
        out: The folder of the run, if the user gave one.
        scratch: A temporary folder; if `out` is given, on the same file system.
        processes: Number of processes that share the run on this machine.
        seconds_per_step: Measured time of a step of the whole batch in one process, once it is known.
    """

    config: Config
    images: Source
    given: bool
    device: torch.device
    out: Path | None
    scratch: Path
    processes: int
    seconds_per_step: float | None = None


def open_subject(
    data: Openable | None,
    recipe: str | Path | None,
    overrides: dict[str, Any],
    *,
    out: Path | None,
    scratch: Path,
    procs: int | None,
    display: Display,
) -> Subject:
    """Read the settings and open the images, or generate some."""
    values = read_settings(recipe, overrides)
    device = choose_device(resolve_part(DeviceSettings, values).device)
    check_precision(resolve_part(DeviceSettings, values).precision, device)
    processes = _processes(procs, device)
    if data is None:
        config = settled(resolve(values, num_images=_GENERATED * 16), values, device)
        return Subject(config, _noise(values, config.batch_size), False, device, out, scratch, processes)
    config, source, device = open_for_training(data, recipe, overrides, display)
    return Subject(config, source, True, device, out, scratch, processes)


def _processes(procs: int | None, device: torch.device) -> int:
    if procs is not None and procs < 1:
        raise ConfigError(f"--procs must be at least 1, received {procs}.")
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if gpus and procs is not None and procs > gpus:
        raise ConfigError(f"--procs must be at most the number of GPUs, {gpus}, received {procs}.")
    return procs or gpus or _PROCESSES


def _noise(values: dict[str, Any], count: int) -> Source:
    """Return `count` images, a few of which are different."""
    size = resolve_part(SizeSettings, values).global_size
    generator = np.random.Generator(np.random.Philox(0))
    images = generator.integers(0, 256, (_GENERATED, size, size, 3), dtype=np.uint8)
    source = ArraySource(images, name="generated images")
    return Subset(source, np.arange(count) % _GENERATED)


def few_images(subject: Subject, count: int) -> Source:
    """Return exactly `count` images, spread over all of them; repeated if there are fewer."""
    indices = np.linspace(0, len(subject.images) - 1, count).astype(np.int64)
    return Subset(subject.images, indices)


def small_run(config: Config, images: int, *, epochs: int = 1) -> Config:
    """Return a run of the same encoder with few images, prototypes and views, and nothing that adapts itself.

    With `images` images in total, an epoch is one step. On a CPU, views are not large.
    """
    on_cpu = choose_device(config.device).type == "cpu"
    block = min(config.block_size, _PROTOTYPES)
    changes: dict[str, Any] = {
        "epochs": epochs,
        "warmup_epochs": 0,
        "batch_size": images,
        "micro_batch": None,
        "prototypes": "replicated",
        "prototype_shards": None,
        "block_size": block,
        "num_prototypes": min(config.num_prototypes, _PROTOTYPES // block * block),
        "global_size": min(config.global_size, _SIDE_ON_CPU) if on_cpu else config.global_size,
        "local_size": min(config.local_size, _SIDE_ON_CPU) if on_cpu else config.local_size,
        "local_views": min(config.local_views, _LOCAL_VIEWS),
        "workers": 0,
        "threads": torch.get_num_threads(),
        "max_bad_share": 1.0,
        "compile": False,
        "validation": None,
        "tensorboard": False,
        "keep_epochs": None,
    }
    return resolve({**config.model_dump(), **changes}, num_images=images)
