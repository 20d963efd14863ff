"""One trial of detection: fine-tune the detector from the last saved step, then look for objects."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from carp.errors import NonFiniteError
from carp.evaluation.detection.detector import parameter_groups
from carp.evaluation.detection.voc import STEP, WEIGHTS, Annotated, Scene, Scenes, read_pixels
from carp.evaluation.detection.voc_metric import Boxes
from carp.features.extract import Progress
from carp.random import Purpose, seed_of
from carp.runs.checkpoint import Checkpoint, save
from carp.runs.resumable import ResumableLoop, newest_state

_WARMUP_FROM = 1e-3  # share of the learning rate at the first step


@dataclass(frozen=True)
class Schedule:
    """How a trial trains."""

    iterations: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    drops: Sequence[float]
    warmup: int

    def lr_at(self, step: int) -> float:
        """Return the learning rate: a linear warm-up, then a tenth of the rate after every drop."""
        passed = sum(step >= round(share * self.iterations) for share in self.drops)
        begun = min(1.0, _WARMUP_FROM + (1 - _WARMUP_FROM) * step / self.warmup) if self.warmup else 1.0
        return float(self.lr * begun * 0.1**passed)


@dataclass
class Trial:
    """A detector that is being trained."""

    number: int
    seed: int
    make: Callable[[], nn.Module]
    schedule: Schedule
    scenes: Scenes
    device: torch.device
    workers: int
    state: Path | None
    save_seconds: float
    progress: Progress
    warn: Callable[[str], None]

    def trained(self) -> nn.Module:
        """Return the detector after its last step."""
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(self.seed, Purpose.DETECTION, WEIGHTS, self.number))
            self.detector = self.make().to(self.device).train()
            self.optimiser = torch.optim.SGD(
                parameter_groups(self.detector, self.schedule.weight_decay),
                lr=self.schedule.lr,
                momentum=self.schedule.momentum,
            )
            ResumableLoop(
                first_step=self._resume(),
                last_step=self.schedule.iterations,
                batches=self._batches,
                step=self._step,
                save=None if self.state is None else self._save,
                save_seconds=self.save_seconds,
                work_follows=True,
                progress=self.progress,
                describe=lambda done, total: f"iteration {done} of {total}, trial {self.number + 1}",
            ).run()
        return self.detector.eval()

    def _batches(self, first: int, last: int) -> Generator[list[Scene]]:
        workers = self.workers if first < last else 0
        return self.scenes.batches(first, last, batch_size=self.schedule.batch_size, workers=workers)

    def _step(self, step: int, batch: list[Scene]) -> None:
        torch.manual_seed(seed_of(self.seed, Purpose.DETECTION, STEP, self.number, step))  # which boxes are sampled
        images = [scene.pixels.to(self.device).float() / 255 for scene in batch]
        targets = [{"boxes": scene.corners.to(self.device), "labels": scene.classes.to(self.device)} for scene in batch]
        loss: Tensor = sum(self.detector(images, targets).values(), torch.zeros((), device=self.device))
        if not math.isfinite(loss.item()):
            raise NonFiniteError(
                f"detection: the loss of trial {self.number + 1}, iteration {step + 1} is {loss.item()}. Use an "
                f"lr below {self.schedule.lr}, or a longer warmup."
            )
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.lr_at(step)
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()

    def _resume(self) -> int:
        """Restore the newest saved state and return its number of steps."""
        found = newest_state(self.state, self.warn)
        if found is None:
            return 0
        model = {name.removeprefix("model."): t for name, t in found.tensors.items() if name.startswith("model.")}
        self.detector.load_state_dict(model)
        for name, parameter in self.detector.named_parameters():
            self.optimiser.state[parameter]["momentum_buffer"] = found.tensors[f"momentum.{name}"].to(self.device)
        return found.step

    def _save(self, step: int) -> None:
        assert self.state is not None
        tensors = {f"model.{name}": tensor for name, tensor in self.detector.state_dict().items()}
        for name, parameter in self.detector.named_parameters():
            tensors[f"momentum.{name}"] = self.optimiser.state[parameter]["momentum_buffer"]
        save(self.state, Checkpoint(step, tensors, {}), keep=1)


def detect(detector: nn.Module, images: Sequence[Annotated], device: torch.device, progress: Progress) -> list[Boxes]:
    """Return what the detector finds in every image."""
    found = []
    for place, image in enumerate(images):
        pixels = torch.from_numpy(read_pixels(image)).permute(2, 0, 1).to(device).float() / 255
        with torch.inference_mode():
            boxes: dict[str, Any] = detector([pixels])[0]
        found.append(
            Boxes(
                boxes["boxes"].cpu().numpy().astype(np.float64),
                boxes["labels"].cpu().numpy() - 1,
                boxes["scores"].cpu().numpy().astype(np.float64),
            )
        )
        progress(place + 1, len(images))
    return found
