"""Trains classifiers on random crops of the images of a source; the same call resumes from a saved state.

Shapes: B images of a step, F features.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from carp.compute import distributed
from carp.errors import ConfigError
from carp.evaluation.feature_arrays import Features, Labels, Progress, silent
from carp.evaluation.linear.grid import Batch, Classifier, in_order
from carp.evaluation.linear.grid_training import FrozenEncoder, Grids, Precision, Training
from carp.images.source import Source
from carp.images.views.crops import Crops
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation
from carp.runs.run_folder import locked

T = TypeVar("T", bound=np.generic)

_STATE = 2  # version of the files below `state`; change it when the computation of a step changes


@dataclass(frozen=True)
class CropTraining:
    """A frozen encoder, the images that it sees, and a folder for the state of the training."""

    encoder: nn.Module
    """Images [B, 3, size, size] to features [B, F]."""
    source: Source
    size: int
    device: torch.device
    precision: Precision = "fp32"
    workers: int = 2
    interpolation: Interpolation = DEFAULT_INTERPOLATION
    weights_hash: str = ""
    state: Path | None = None
    save_seconds: float = 120.0
    warn: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.state is not None and not self.weights_hash:
            raise ConfigError(
                "state was given without weights_hash, so it could be resumed with another encoder. Give the hash."
            )

    def run(
        self,
        grids: Grids,
        classifiers: list[Classifier],
        images: NDArray[np.int64],
        labels: Labels,
        *,
        held_out: NDArray[np.bool_] | None = None,
        held_out_share: float | None = None,
        epochs: int,
        batch_size: int,
        seed: int,
        lr_factor: Callable[[int], float],
        also: dict[str, Any] | None = None,
        progress: Progress = silent,
    ) -> None:
        """Train grids on crops of these images, from the newest saved state to the end.

        Args:
            grids: The grids to train; processes share their classifiers.
            classifiers: The classifiers of all processes.
            images: Which images of the source, [N].
            labels: Their classes, [N].
            held_out: Those that select a classifier, [N].
            held_out_share: The requested share.
            epochs: Passes over the images.
            batch_size: Images per step.
            seed: Seed of the order and of the crops.
            lr_factor: Factor of the learning rates in an epoch.
            also: Further values that must match before a state is resumed.
            progress: Called with (done, all) images, counted over the epochs.
        """
        shape = grids.final.weight_SCF.shape
        described = {
            "state": _STATE,
            "members": [asdict(classifier) for classifier in classifiers],  # a key of states of earlier versions
            "settings": [epochs, batch_size, held_out_share, seed, self.size, self.precision, self.device.type],
            "weights": self.weights_hash,
            "data": [self.source.fingerprint, digest(images), digest(labels)],
            "shape": [shape[2], shape[1]],
            **({} if self.interpolation == DEFAULT_INTERPOLATION else {"interpolation": self.interpolation}),
            **(also or {}),
        }
        name = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
        place = None if self.state is None else self.state / name
        crops = Crops(
            self.source,
            images,
            size=self.size,
            batch_size=batch_size,
            seed=seed,
            workers=self.workers,
            ahead=self.device.type != "cpu",
            interpolation=self.interpolation,
        )
        with nullcontext() if place is None or not distributed.is_first() else locked(place):
            Training(
                grids=grids,
                crops=crops,
                encode=FrozenEncoder(self.encoder, self.device, self.precision),
                epochs=epochs,
                lr_factor=lr_factor,
                label_of=self._by_image(images, labels),
                is_held=self._by_image(images, np.zeros(len(images), np.bool_) if held_out is None else held_out),
                state=place,
                save_seconds=self.save_seconds,
                progress=progress,
                warn=self.warn,
            ).run()

    def batches(self, features: Features, labels: Labels, rows: NDArray[np.int64] | None = None) -> Iterator[Batch]:
        """Return stored features and their labels, on the device of the encoder; all rows if none are given."""
        chosen = np.arange(len(features)) if rows is None else rows
        return ((x_BF.to(self.device), y_B.to(self.device)) for x_BF, y_B in in_order(features, labels, chosen))

    def _by_image(self, images: NDArray[np.int64], values: NDArray[T]) -> NDArray[T]:
        """Return values of some images as values of all images of the source."""
        found = np.zeros(len(self.source), dtype=values.dtype)
        found[images] = values
        return found


def digest(array: NDArray[Any]) -> str:
    """Return a hash of the values of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
