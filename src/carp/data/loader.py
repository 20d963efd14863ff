"""Batches of views in a fixed order, startable at any step.

The order of an epoch is a permutation drawn from (seed, epoch); the last images that do not fill a batch wait for
another epoch's order. Small images are held in memory and augmented a batch at a time; photographs are decoded and
augmented one at a time by worker processes.

Shapes: V views, B images, S side of a view.
"""

import signal
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from carp.config import SMALL_IMAGE, Config
from carp.data.batch_views import batch_views
from carp.data.decode import pixel_limit
from carp.data.photo_views import photo_views
from carp.data.random import Purpose, seed_of
from carp.data.source import ArraySource, Source
from carp.data.view_parameters import view_kinds
from carp.errors import DataError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Batch:
    """The views of one optimiser step."""

    step: int
    epoch: int
    indices: NDArray[np.int64]
    views: list[Tensor]  # V tensors [B, 3, S, S]: floats in [0, 1] or bytes, not yet normalised


class Loader(Protocol):
    """Makes the batches of a run."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""


class Order:
    """Which images make up which step."""

    def __init__(self, num_images: int, batch_size: int, seed: int) -> None:
        if num_images < batch_size:
            raise DataError(
                f"batch_size is {batch_size} but there are only {num_images} images. "
                f"Set batch_size={max(2, num_images)} or less."
            )
        self.num_images, self.batch_size, self.seed = num_images, batch_size, seed
        self.steps_per_epoch = num_images // batch_size

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """The indices of all batches of an epoch, [steps, B]."""
        generator = np.random.Generator(np.random.Philox(seed_of(self.seed, Purpose.ORDER, epoch)))
        used = generator.permutation(self.num_images)[: self.steps_per_epoch * self.batch_size]
        return used.astype(np.int64).reshape(self.steps_per_epoch, self.batch_size)

    def steps(self, first_step: int, last_step: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Yield (step, epoch, indices)."""
        epoch_order, order = -1, np.empty((0, 0), dtype=np.int64)
        for step in range(first_step, last_step):
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != epoch_order:
                epoch_order, order = epoch, self.of_epoch(epoch)
            yield step, epoch, order[place]


class SmallImageLoader:
    """Augments whole batches of images held in memory."""

    def __init__(self, source: ArraySource, config: Config) -> None:
        self._images, self._kinds, self._seed = source.images, view_kinds(config), config.seed
        self._order = Order(len(source), config.batch_size, config.seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""
        for step, epoch, indices in self._order.steps(first_step, last_step):
            views = batch_views(self._images[indices], self._kinds, seed=self._seed, epoch=epoch, indices=indices)
            yield Batch(step, epoch, indices, views)


class PhotoLoader:
    """Decodes and augments photographs in worker processes."""

    def __init__(self, source: Source, config: Config) -> None:
        self._order = Order(len(source), config.batch_size, config.seed)
        self.steps_per_epoch = self._order.steps_per_epoch
        self._dataset = _Photos(source, config)
        self._workers = config.workers

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader = DataLoader(
                self._dataset,
                batch_sampler=_StepSampler(self._order, first_step, last_step),
                num_workers=self._workers,
                collate_fn=_stack_or_tell,
                worker_init_fn=_leave_signals_to_parent,
            )
            loaded = iter(loader)
        try:
            for step, epoch, indices in self._order.steps(first_step, last_step):
                views = next(loaded)
                if isinstance(views, str):
                    raise DataError(views)
                yield Batch(step, epoch, indices, views)
        finally:
            del loaded  # the workers end with their iterator, not when the interpreter does


def _leave_signals_to_parent(_worker: int) -> None:
    """Ctrl-C, `timeout` and batch systems signal the whole process group; only the training process acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stack_or_tell(items: list[list[Tensor] | str]) -> list[Tensor] | str:
    """Stack the views of a batch, or pass on the first complaint: an exception would arrive as a traceback."""
    views: list[list[Tensor]] = []
    for item in items:
        if isinstance(item, str):
            return item
        views.append(item)
    # Photographs are channels-last, which only a stack in that order keeps
    return [torch.stack([x.permute(1, 2, 0) for x in view]).permute(0, 3, 1, 2) for view in zip(*views, strict=True)]


class _Photos(Dataset[list[Tensor] | str]):
    """Views by (epoch, index), so that an item is all a worker has to know; a message where there are none."""

    def __init__(self, source: Source, config: Config) -> None:
        self._source, self._kinds, self._seed = source, view_kinds(config), config.seed
        self._max_pixels = config.max_image_pixels

    def __getitem__(self, item: tuple[int, int]) -> list[Tensor] | str:
        epoch, index = item
        try:
            stored, place = self._source.fetch(index), self._source.place(index)
            with pixel_limit(self._max_pixels):
                return photo_views(stored, place, self._kinds, seed=self._seed, epoch=epoch, index=index)
        except DataError as error:
            return str(error)


class _StepSampler:
    def __init__(self, order: Order, first_step: int, last_step: int) -> None:
        self._order, self._range = order, (first_step, last_step)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for _, epoch, indices in self._order.steps(*self._range):
            yield [(epoch, int(i)) for i in indices]

    def __len__(self) -> int:
        return self._range[1] - self._range[0]


def make_loader(source: Source, config: Config) -> Loader:
    """The loader that suits the views' size and the source."""
    if isinstance(source, ArraySource) and config.global_size <= SMALL_IMAGE:
        return SmallImageLoader(source, config)
    return PhotoLoader(source, config)


def normalise(images: Tensor, device: torch.device, *, channels_last: bool = False) -> Tensor:
    """Move images (bytes, or floats in [0, 1]) to the device and apply ImageNet's mean and deviation."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = images.to(device, non_blocking=True)
    mean = torch.tensor(IMAGENET_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD, device=device).view(3, 1, 1)
    if x.dtype == torch.uint8:
        return _normalise_bytes(x, 1 / (255 * std), -mean / std, layout)
    return torch.addcmul(-mean / std, x, 1 / std).contiguous(memory_format=layout)


def _normalise_bytes(x: Tensor, scale: Tensor, shift: Tensor, layout: torch.memory_format) -> Tensor:
    """x·scale + shift as floats, in the order of memory; on a CPU an image at a time, which stays in its cache."""
    floats = torch.empty(x.shape, device=x.device, memory_format=layout)
    rows = floats.flatten(2)
    if layout == torch.channels_last:
        rows = floats.permute(0, 2, 3, 1).flatten(2)
        scale, shift = (value.flatten().repeat(x.shape[-1]) for value in (scale, shift))
    else:
        scale, shift = scale.flatten(1), shift.flatten(1)
    parts = zip(floats, x, rows, strict=True) if x.device.type == "cpu" else [(floats, x, rows)]
    for target, source, row in parts:
        target.copy_(source)
        torch.addcmul(shift, row, scale, out=row)
    return floats
