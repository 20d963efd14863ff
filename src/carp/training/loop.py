"""A run in progress: resume, train, log, validate, diagnose, save."""

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from carp.compute import distributed
from carp.compute.compilation import compilation_explained, compile_networks
from carp.compute.threads import is_tunable
from carp.config import Config, decisive, recorded
from carp.errors import CheckpointError, CollapseError
from carp.images.loading.loader import Batch, Loader
from carp.images.loading.upload import uploaded
from carp.model.batch_norm import is_synchronised, synchronise
from carp.model.carp import Carp
from carp.model.convolutions.for_cpu import prepare_for_cpu
from carp.random import Purpose, seed_of
from carp.runs import checkpoint as checkpoints
from carp.runs.background_writer import Write
from carp.runs.checkpoint import Checkpoint
from carp.runs.metrics_log import RunLog, SilentLog
from carp.runs.resumable import ResumableLoop, newest_state
from carp.runs.thread_log import RunThreads
from carp.training.course import Course
from carp.training.display import TrainingDisplay, TrainingProgress
from carp.training.health import Diagnosis, Health, Verdict
from carp.training.optimiser import build_optimiser, load_optimiser_tensors, optimiser_tensors
from carp.training.post_mortem import post_mortem
from carp.training.schedules import Schedules
from carp.training.shards import all_rows, own_rows, own_shards
from carp.training.step import Stepper, StepResult


class Validate(Protocol):
    """Measures a model on images: k-NN with labels, or what needs none."""

    def __call__(self, model: Carp) -> dict[str, float]:
        """Return the values of student and teacher, by name."""

    def baselines(self, untrained: Carp) -> dict[str, float]:
        """Return the values that the run has to beat, such as those of the model before its first step, by name."""


_PATIENCE = 3  # consecutive "collapsed" measurements before `on_collapse: stop` stops the run


def build_model(config: Config, device: torch.device) -> Carp:
    """Build a model with the initial weights determined by the seed."""
    torch.manual_seed(seed_of(config.seed, Purpose.WEIGHTS))
    model = Carp(config, shard_seeds=[seed_of(config.seed, Purpose.WEIGHTS, 1 + s) for s in own_shards(config)])
    if config.sync_batch_norm:
        synchronise(model)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
        if device.type == "cpu":
            prepare_for_cpu(model)
    return model.to(device)


class Training:
    """A run in progress. `run()` takes it from its newest checkpoint to its last step."""

    def __init__(
        self,
        config: Config,
        loader: Loader,
        folder: Path,
        device: torch.device,
        display: TrainingDisplay,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`start` has the encoder's first weights, for a run without a checkpoint; None leaves them random."""
        self.config, self.loader, self.folder, self.display = config, loader, folder, display
        self.device = device
        self.checkpoints = folder / "checkpoints"
        self.model = build_model(config, device)
        if start is not None:
            self.model.load_encoder(start)
        self.optimiser = build_optimiser(self.model, config)
        self.schedules = Schedules(config, loader.steps_per_epoch)
        self.step = 0
        self.course = Course(self.model.student.encoder, given=config.start is not None)
        self.diagnosis: Diagnosis | None = None
        self.shown = Verdict.TOO_EARLY  # the last verdict that was printed
        saved = self._resume()
        self.threads = self._run_threads(saved.get("torch_threads"))
        self.log = (RunLog if distributed.is_first() else SilentLog)(
            folder,
            length=int(saved.get("metrics_length", 0)),
            checksum=saved.get("metrics_crc32"),
            loggers=config.trackers,
            settings=recorded(config),
            warn=display.warn,
        )
        if config.compile:
            self._compile()
        self.stepper = Stepper(self.model, self.optimiser, self.schedules, config, device)
        self.stepper.loss_scale.restore(saved)

    def _compile(self) -> None:
        """Compile encoders and projectors of both branches; batch norm that waits for other processes cannot be."""
        branches = [self.model.student] if self.model.siamese else [self.model.student, self.model.teacher]
        networks = [network for branch in branches for network in (branch.encoder, branch.projector)]
        possible = [network for network in networks if not is_synchronised(network)]
        compile_networks(possible)
        if len(possible) < len(networks):
            self.display.warn(
                f"compile=true: {len(networks) - len(possible)} of {len(networks)} networks are not compiled, because "
                "their batch norm waits for other processes. Set sync_batch_norm=false to compile them."
            )

    def run(self, validate: Validate | None = None) -> None:
        """Train to the end; raise if a signal, a collapse or a number that is not finite ends the run early."""
        last_step = self.schedules.num_steps
        with compilation_explained(self.config.compile):
            if validate and not self.course.baselines:
                self._measure_baselines(validate)
            if self.step == 0 and self._milestone(0) is not None and (write := self.save()) is not None:
                write()
            self.model.train()
            with self.display.training(self.step, last_step) as progress, self.threads:
                ResumableLoop(
                    first_step=self.step,
                    last_step=last_step,
                    batches=lambda first, last: uploaded(self.loader.batches(first, last), self.device),
                    step=lambda _, batch: self._take_step(batch, progress, validate),
                    save=lambda _: self.save(),
                    save_seconds=60 * self.config.checkpoint_minutes,
                    save_steps=self.config.checkpoint_steps,
                    must_save=lambda step: self._milestone(step) is not None or self._is_best(step),
                    mark=lambda: self.stepper.mark,
                ).run()
        if self.diagnosis is not None:
            self.display.health(last_step, self.diagnosis)
        if (found := self.course.comparison()) is not None:
            self.display.comparison(found, self.loader.steps_per_epoch)
        self.log.close()

    def _take_step(self, batch: Batch, progress: TrainingProgress, validate: Validate | None) -> None:
        """Take one step, and log, validate and diagnose when that is due."""
        last_step = self.schedules.num_steps
        with_health = batch.step % self.config.health_steps == 0 or batch.step + 1 == last_step
        with self.threads.step(batch.step), distributed.explained():
            result = self.stepper(batch, with_health=with_health)
        if not result.finite:
            raise post_mortem(self.folder, self.model, batch, result, self.diagnosis)
        self.step = batch.step + 1
        self._record(batch, result)
        if validate and self._epoch_ends_with_validation():
            progress.knn(self._validate(validate, batch), self.course.baselines)
        if result.health is not None:
            self._diagnose(batch.step, result.health)
        progress.step(result, images=batch.num_images)
        if with_health and self.step < last_step:
            self._stop_if_collapsed()

    def save(self) -> Write | None:
        """Copy everything that cannot be derived from the configuration and the step; return what writes the copy.

        Every process calls this; only the first one writes. Nothing in it depends on the number of processes.
        """
        tensors = self._tensors()
        if not distributed.is_first():
            return None
        state = {
            "metrics_length": self.log.sync(),
            "metrics_crc32": self.log.checksum,
            **self.course.state(),
            **self.stepper.loss_scale.state(),
            "seed": self.config.seed,
            "settings": decisive(self.config),
            "epoch": self.step // self.loader.steps_per_epoch,
            "torch_threads": self.threads.current,
            "processes": distributed.world_size(),
        }
        return partial(
            checkpoints.save,
            self.checkpoints,
            Checkpoint(self.step, checkpoints.snapshot(tensors), copy.deepcopy(state)),
            keep=self.config.keep_checkpoints,
            milestone=self._milestone(self.step),
            best=self._is_best(self.step),
        )

    def _is_best(self, step: int) -> bool:
        """Whether the model after this number of steps is the best one so far, in a run that is compared."""
        return self.course.best is not None and self.course.best[0] == step

    def _milestone(self, step: int) -> int | None:
        """Return the epoch that ends after this number of steps, if its checkpoint is never removed.

        Epoch 0 is the start of a run that begins with given weights: no seed reproduces it.
        """
        epoch, place = divmod(step, self.loader.steps_per_epoch)
        kept = self.config.keeps(epoch) if epoch else self.config.start is not None
        return epoch if place == 0 and kept else None

    def _resume(self) -> dict[str, Any]:
        """Load the newest intact checkpoint, if any, and return its state."""
        point = newest_state(self.checkpoints, self.display.warn)
        if point is None:
            if checkpoints.list_checkpoints(self.checkpoints):
                raise CheckpointError(
                    f"none of the checkpoints in {self.checkpoints} is intact. "
                    "Remove that folder to start again from step 0."
                )
            return {}
        self.step = point.step
        tensors = own_rows(point.tensors, self.config)
        module = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        if self.model.siamese:
            module |= {k.replace("student.", "teacher.", 1): v for k, v in module.items()}
        self.model.load_state_dict(module)
        self.course.restore(point.state, tensors)
        moments = {k.removeprefix("optimiser."): v for k, v in tensors.items() if k.startswith("optimiser.")}
        load_optimiser_tensors(self.optimiser, self.model, moments)
        self.display.say(f"resuming at step {self.step} of {self.schedules.num_steps}")
        before, now = point.state.get("processes", 1), distributed.world_size()
        if before != now:
            self.display.warn(
                f"this run was saved with {before} process{'es' if before > 1 else ''} and resumes with {now}: the "
                "result will differ in rounding."
            )
        return point.state

    def _run_threads(self, recorded: int | None) -> RunThreads:
        """Choose the number of threads: the setting, the environment variable, or the fastest on this machine."""
        fixed = self.config.threads if isinstance(self.config.threads, int) else None
        if fixed is None and (distributed.world_size() > 1 or not is_tunable(self.device)):
            fixed = torch.get_num_threads()
        return RunThreads(
            self.folder,
            step=self.step,
            threads=fixed,
            most=fixed or torch.get_num_threads(),
            recorded=recorded,
            writes=distributed.is_first(),
            announce=self.display.say,
            warn=self.display.warn,
        )

    def _tensors(self) -> dict[str, Tensor]:
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.model.siamese:  # one set of weights under two names; store it once
            model = {name: t for name, t in model.items() if not name.startswith("model.teacher.")}
        moments = optimiser_tensors(self.optimiser, self.model)
        moments = {f"optimiser.{name}": tensor for name, tensor in moments.items()}
        return all_rows(model | moments, self.config) | self.course.tensors()

    def _record(self, batch: Batch, result: StepResult) -> None:
        scale = self.stepper.loss_scale
        if not result.applied:
            self.log.write(batch.step, {"epoch": batch.epoch, "skipped": True, "loss_scale": scale.value})
            self.display.say(f"step {batch.step} was skipped: its gradient overflows in fp16 ({scale})")
        if batch.step % self.config.log_steps == 0 or self.step == self.schedules.num_steps:
            values = {
                "epoch": batch.epoch,
                "loss": result.loss,
                "consistency": result.consistency,
                "kl_to_uniform": result.kl_to_uniform,
                **({} if result.koleo is None else {"koleo": result.koleo}),
                "gradient_norm": result.gradient_norm if result.applied else None,
                "lr": result.lr,
                "teacher_momentum": result.teacher_momentum,
                "entropy_weight": result.entropy_weight,
                **({"loss_scale": scale.value} if scale.active else {}),
            }
            self.log.write(batch.step, values)

    def _diagnose(self, step: int, health: Health) -> None:
        self.diagnosis = found = self.course.judge(self.step, health)
        since = {"agreement_gain": self.course.progress.gain, "weight_change": self.course.progress.weight_change}
        self.log.write(step, {"health": found.verdict.value, "cause": found.cause, **health.as_dict(), **since})
        if found.verdict != self.shown and self.step < self.schedules.num_steps:  # the last one is shown at the end
            self.shown = found.verdict
            self.display.health(self.step, found)

    def _measure_baselines(self, validate: Validate) -> None:
        """Measure the baselines once. A run that an older version started may be past step 0."""
        untrained = self.model if self.step == 0 else build_model(self.config, self.device)
        self.course.validated(0, validate.baselines(untrained))
        self.log.write(self.step, {"epoch": 0, **self.course.baselines})
        self.display.baselines(self.course.baselines)

    def _epoch_ends_with_validation(self) -> bool:
        epoch, place = divmod(self.step, self.loader.steps_per_epoch)
        return place == 0 and (epoch % self.config.validate_epochs == 0 or self.step == self.schedules.num_steps)

    def _validate(self, validate: Validate, batch: Batch) -> dict[str, float]:
        values = validate(self.model)
        self.model.train()
        self.log.write(batch.step, {"epoch": batch.epoch + 1, **values})
        self.course.validated(self.step, values)
        return values

    def _stop_if_collapsed(self) -> None:
        if self.config.on_collapse != "stop":
            return
        # Processes on different hardware may round to different verdicts
        (in_a_row,) = distributed.all_reduce_max([self.course.collapsed_in_a_row])
        if in_a_row >= _PATIENCE:
            raise CollapseError(f"stopped at step {self.step}, {self.diagnosis} (on_collapse: stop)")
