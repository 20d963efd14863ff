"""A run folder that begins with given weights instead of random ones: `carp train` resumes it like any other."""

import zlib
from pathlib import Path

import torch
from torch import Tensor

from carp.config import Config, decisive
from carp.errors import CheckpointError
from carp.images.loading.order import check_batch_size, steps_in_epoch
from carp.images.source import Source
from carp.model.carp import Carp
from carp.runs import checkpoint as checkpoints
from carp.runs.checkpoint import Checkpoint
from carp.runs.run_folder import Run, held_run, open_run
from carp.training.course import IMPORTED_AT

Tensors = dict[str, Tensor]


def write_imported_run(
    folder: Path, config: Config, source: Source, *, epoch: int, branches: dict[str, Tensors], moments: Tensors
) -> Run:
    """Write a run folder with one checkpoint, which is never removed.

    Args:
        folder: The run folder. It must not have a checkpoint.
        config: The settings of the run.
        source: The images to train on.
        epoch: The number of finished epochs.
        branches: The tensors of student and teacher, by the names of `Branch`.
        moments: The momentum of LARS, by the names of the student's parameters; may be empty.
    """
    check_batch_size(len(source), config.batch_size)
    if checkpoints.list_checkpoints(folder / "checkpoints"):
        raise CheckpointError(f"{folder} already contains a run. Use another --out.")
    model = {f"{name}.{key}": t for name, tensors in branches.items() for key, t in tensors.items()}
    if config.siamese:  # one set of weights
        model = {name: t for name, t in model.items() if not name.startswith("teacher.")}
    _check_shapes(config, model)
    step = epoch * steps_in_epoch(len(source), config.batch_size)
    tensors = {f"model.{name}": t for name, t in model.items()}
    tensors |= {f"optimiser.student.{name}/momentum_buffer": t for name, t in moments.items()}
    state = {
        IMPORTED_AT: step,
        "collapsed_in_a_row": 0,
        "metrics_length": 0,
        "metrics_crc32": zlib.crc32(b""),
        "seed": config.seed,
        "settings": decisive(config),
        "epoch": epoch,
        "processes": 1,
    }
    with held_run(folder, config, source):
        point = Checkpoint(step, tensors, state)
        checkpoints.save(folder / "checkpoints", point, keep=config.keep_checkpoints, milestone=epoch)
    return open_run(folder)


def _check_shapes(config: Config, tensors: Tensors) -> None:
    """Raise unless the tensors are those of the model."""
    with torch.device("meta"):
        state = Carp(config).state_dict()
    expected = {name: t for name, t in state.items() if not (config.siamese and name.startswith("teacher."))}
    for name in (*expected, *tensors):
        here, there = (list(held[name].shape) if name in held else "missing" for held in (tensors, expected))
        if here != there:
            raise CheckpointError(f"the weights do not fit the model: {name} is {here}, expected {there}.")
