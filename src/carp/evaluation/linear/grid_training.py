"""Trains grids of linear classifiers on one pass of a frozen encoder over random crops; resumable.

Shapes: B images of a step, S classifiers, C classes, F features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.compute import distributed
from carp.compute.device import check_precision
from carp.errors import BadImagesError, DataError
from carp.evaluation.feature_arrays import Labels
from carp.evaluation.linear.best_epochs import BestEpochs
from carp.evaluation.linear.grid import Classifier, LinearGrid
from carp.features.extract import Progress
from carp.images.loading.loader import normalise
from carp.images.loading.quarantine import Unreadable
from carp.images.views.crops import CropBatch, Crops
from carp.runs.checkpoint import Checkpoint, save
from carp.runs.resumable import ResumableLoop, newest_state

Precision = Literal["fp32", "bf16"]

_MOST_LOST = 0.05  # share of the images that may have become unreadable since their features were stored


class Grids(ABC):
    """What is trained on one pass of the encoder."""

    final: LinearGrid
    """The grid that sees all images."""

    @abstractmethod
    def step(self, x_BF: Tensor, y_B: Tensor, is_held_B: Tensor, *, lr_factor: float) -> None:
        """Train on features [B, F] for one step."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes during training."""

    @abstractmethod
    def after_epoch(self, epoch: int) -> None:
        """Called at the end of every epoch."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in self.state_dict().items():
            value.copy_(state[name])


class OneGrid(Grids):
    """A grid that sees all images; the best epoch of every classifier is kept if `best` is given."""

    def __init__(self, grid: LinearGrid, best: BestEpochs | None = None) -> None:
        self.final, self._best = grid, best

    def step(self, x_BF: Tensor, y_B: Tensor, is_held_B: Tensor, *, lr_factor: float) -> None:  # noqa: ARG002
        """Train the grid on features [B, F] for one step."""
        self.final.step(x_BF, y_B, lr_factor=lr_factor)

    def after_epoch(self, epoch: int) -> None:
        """Test the classifiers, if their best epoch is wanted."""
        if self._best is not None:
            self._best.after_epoch(epoch)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes during training."""
        return _joined({"final": self.final, "best": self._best})


class TwoGrids(Grids):
    """The grid that selects the settings on images it did not see, and the one that sees all images."""

    def __init__(
        self, classifiers: Sequence[Classifier], num_features: int, num_classes: int, *, seed: int, device: torch.device
    ) -> None:
        self.choosing, self.final = (
            LinearGrid(classifiers, num_features, num_classes, seed=seed, device=str(device)) for _ in range(2)
        )

    def step(self, x_BF: Tensor, y_B: Tensor, is_held_B: Tensor, *, lr_factor: float) -> None:
        """Train both grids on features [B, F] for one step."""
        seen_B = ~is_held_B
        if seen_B.any():  # a batch may be small
            self.choosing.step(x_BF[seen_B], y_B[seen_B], lr_factor=lr_factor)
        self.final.step(x_BF, y_B, lr_factor=lr_factor)

    def after_epoch(self, epoch: int) -> None:
        """Only the last epoch counts."""

    def finite(self) -> list[bool]:
        """Return which classifiers have diverged in neither grid."""
        found: list[bool] = (self.choosing.finite() & self.final.finite()).tolist()
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes during training."""
        return _joined({"choosing": self.choosing, "final": self.final})


def _joined(parts: Mapping[str, LinearGrid | BestEpochs | None]) -> dict[str, Tensor]:
    """Return the states of several parts, each under its name."""
    return {
        f"{name}.{key}": value
        for name, part in parts.items()
        for key, value in (part.state_dict() if part is not None else {}).items()
    }


class FrozenEncoder:
    """The frozen encoder."""

    def __init__(self, encoder: nn.Module, device: torch.device, precision: Precision) -> None:
        check_precision(precision, device)
        self._encoder, self._device, self._bf16 = encoder, device, precision == "bf16"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Switch to evaluation mode within the context."""
        was_training = self._encoder.training
        self._encoder.eval()
        try:
            yield
        finally:
            self._encoder.train(was_training)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return features [B, F] of images that are not yet normalised."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            features_BF: Tensor = self._encoder(normalise(images, self._device, channels_last=True))
        return features_BF.float()


@dataclass
class Training:
    """Trains grids, step by step."""

    grids: Grids
    crops: Crops
    encode: FrozenEncoder
    epochs: int
    lr_factor: Callable[[int], float]  # in an epoch
    label_of: Labels  # of every image of the source
    is_held: NDArray[np.bool_]
    state: Path | None
    save_seconds: float
    progress: Progress
    warn: Callable[[str], None]
    _lost: dict[int, Unreadable] = field(default_factory=dict)

    def run(self) -> None:
        """Resume from the newest saved state and train to the end."""
        with self.encode.frozen():
            ResumableLoop(
                first_step=self._resume(),
                last_step=self.epochs * self.crops.steps_per_epoch,
                batches=self.crops.batches,
                step=self._step,
                save=None if self.state is None else self._save,
                save_seconds=self.save_seconds,
                work_follows=True,
                progress=self._report,
            ).run()
        if self._lost:
            self.warn(self._note())

    def _report(self, done: int, total: int) -> None:
        self.progress(self.crops.images_until(done), self.crops.images_until(total))

    def _step(self, step: int, batch: CropBatch) -> None:
        gathered = distributed.gather([asdict(bad) for bad in batch.unreadable] or None)
        self._leave_out([Unreadable(**bad) for part in gathered for bad in part or []])
        wanted, device = self.grids.final.weight_SCF.shape[2], self.grids.final.weight_SCF.device
        x_BF = self.encode(batch.images) if len(batch.indices) else torch.empty(0, wanted, device=device)
        if x_BF.ndim != 2 or x_BF.shape[1] != wanted:
            raise DataError(
                f"the encoder returns features of shape {list(x_BF.shape[1:])}, but the stored ones have length "
                f"{wanted}. Take both from the same encoder."
            )
        x_BF, indices = (
            distributed.all_gather_rows(x_BF),
            distributed.all_gather_rows(torch.from_numpy(batch.indices)).numpy(),
        )
        if len(indices):
            y_B, is_held_B = (torch.from_numpy(values[indices]).to(device) for values in (self.label_of, self.is_held))
            self.grids.step(x_BF, y_B, is_held_B, lr_factor=self.lr_factor(batch.epoch))
        if (step + 1) % self.crops.steps_per_epoch == 0:
            self.grids.after_epoch(batch.epoch)

    def _resume(self) -> int:
        """Restore the newest saved state and return its number of steps."""
        found = newest_state(self.state, self.warn)
        if found is None:
            return 0
        own = distributed.own_share(len(next(iter(found.tensors.values()))))  # of the classifiers
        self.grids.load_state_dict({name: value[own] for name, value in found.tensors.items()})
        return found.step

    def _save(self, step: int) -> None:
        """Save what does not depend on the number of processes."""
        assert self.state is not None
        tensors = {name: distributed.all_gather_rows(value) for name, value in self.grids.state_dict().items()}
        if distributed.is_first():
            save(self.state, Checkpoint(step, tensors, {}), keep=2)

    def _leave_out(self, unreadable: list[Unreadable]) -> None:
        """Note images that can no longer be read; raise an error if there are too many."""
        self._lost |= {bad.index: bad for bad in unreadable}
        if len(self._lost) > max(1, _MOST_LOST * self.crops.num_images):
            raise BadImagesError(
                f"{self._note()} They could be read when their features were stored: restore them and run the same "
                "command again, or extract the features again."
            )

    def _note(self) -> str:
        first = next(iter(self._lost.values()))
        return (
            f"{len(self._lost):,} of {self.crops.num_images:,} training images cannot be read and are left out; the "
            f"first is {first.place}: {first.reason}."
        )
