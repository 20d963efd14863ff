"""Trains any method with CARP's loader, optimisers, schedules and resumable loop."""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.compare.method import Method, Moment
from benchmarks.shared import CPU
from carp.compute.device import check_precision
from carp.config import Config
from carp.errors import CheckpointError, NonFiniteError
from carp.images.loading.loader import Batch, make_loader, normalise
from carp.images.source import Source
from carp.model.convolutions.for_cpu import prepare_for_cpu
from carp.random import Purpose, seed_of
from carp.runs import checkpoint as checkpoints
from carp.runs.background_writer import Write
from carp.runs.checkpoint import Checkpoint
from carp.runs.resumable import ResumableLoop, newest_state
from carp.training.optimiser import load_optimiser_tensors, optimiser_tensors, set_hyperparameters
from carp.training.schedules import Schedules

SAVE_SECONDS = 300.0
_WEIGHTS, _MOMENTS, _SETTINGS = "method.", "optimiser.", "settings"


class MethodTraining:
    """The training of one method; everything random follows from the seed and the step."""

    def __init__(self, kind: type[Method], trial: Mapping[str, Any], source: Source, config: Config) -> None:
        check_precision(config.precision, CPU)
        self.config, self.trial = config, dict(trial)
        torch.manual_seed(seed_of(config.seed, Purpose.WEIGHTS))
        method = kind.build(config, trial).to(memory_format=torch.channels_last)
        prepare_for_cpu(method)
        self.method = method.train()
        self.optimiser = method.optimiser()
        self.loader = make_loader(source, config)
        self.schedules = Schedules(config, self.loader.steps_per_epoch)
        self.num_steps = self.schedules.num_steps
        self.last_loss = math.nan

    def run(self, folder: Path | None = None, *, save_steps: int | None = None) -> int:
        """Train to the end, from the newest checkpoint of the folder if there is one; return the step it began at."""
        first = self._resume(folder)
        ResumableLoop(
            first_step=first,
            last_step=self.num_steps,
            batches=self.loader.batches,
            step=lambda _, batch: self.step(batch),
            save=None if folder is None else partial(self._save, folder),
            save_seconds=SAVE_SECONDS,
            save_steps=save_steps,
            work_follows=True,
        ).run()
        return first

    def step(self, batch: Batch) -> None:
        """Take one step; raise if the loss is not finite."""
        at, method = batch.step, self.method
        moment = Moment(at, self.num_steps, self.schedules.teacher_momentum(at), self.schedules.entropy_weight(at))
        set_hyperparameters(self.optimiser, lr=self.schedules.lr(at), weight_decay=self.schedules.weight_decay(at))
        views = [
            normalise(view, CPU, channels_last=True, mean=self.config.mean, deviation=self.config.deviation)
            for view in batch.views
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.half):
            loss = method.loss(views, moment)
        self.last_loss = loss.item()
        if not math.isfinite(self.last_loss):
            raise NonFiniteError(f"the loss of step {at} of {self.num_steps} is {self.last_loss}.")
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        method.before_step(moment)
        self.optimiser.step()
        method.after_step(moment)

    def time_steps(self, count: int, clock: Callable[[], float]) -> list[float]:
        """Take the first steps, and return the time of each."""
        taken, before = list[float](), clock()
        for batch in self.loader.batches(0, min(count, self.num_steps)):
            self.step(batch)
            taken.append(clock() - before)
            before = clock()
        return taken

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors of the method, queues included, which lightly leaves out of its state."""
        return {**dict(self.method.named_parameters()), **dict(self.method.named_buffers())}

    def _save(self, folder: Path, step: int) -> Write:
        weights = {_WEIGHTS + name: tensor for name, tensor in self._tensors().items()}
        moments = {_MOMENTS + name: t for name, t in optimiser_tensors(self.optimiser, self.method).items()}
        state = Checkpoint(step, checkpoints.snapshot(weights | moments), {_SETTINGS: self._settings()})
        return partial(checkpoints.save, folder / "checkpoints", state, keep=1)

    def _settings(self) -> dict[str, Any]:
        """What a checkpoint must have been trained with to be resumed."""
        return {"trial": self.trial, "config": json.loads(self.config.model_dump_json())}

    @torch.no_grad()
    def _resume(self, folder: Path | None) -> int:
        point = None if folder is None else newest_state(folder / "checkpoints", lambda _problem: None)
        if point is None:
            return 0
        if point.state.get(_SETTINGS, self._settings()) != self._settings():  # earlier versions did not record them
            raise CheckpointError(
                f"the checkpoint in {folder} was trained with other settings. Move that folder away, then run the same "
                "command again."
            )
        for name, tensor in self._tensors().items():
            tensor.copy_(point.tensors[_WEIGHTS + name])
        moments = {n.removeprefix(_MOMENTS): t for n, t in point.tensors.items() if n.startswith(_MOMENTS)}
        load_optimiser_tensors(self.optimiser, self.method, moments)
        return point.step
