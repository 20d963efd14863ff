"""Random crops and flips of chosen images, for training classifiers on a frozen encoder.

A crop depends on (seed, epoch, index) alone, and the order on (seed, epoch), so that training resumes at any step.
Every chosen image appears once per epoch, in batches of nearly equal size. Unlike in pretraining, an image that cannot
be read is not replaced: the proportions of the labels would change.

Shapes: B images, S side of a crop.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from carp.compute import distributed
from carp.config import SMALL_IMAGE
from carp.errors import DataError, UnreadableImageError, plain
from carp.images.decoding.decode import pixel_limit, pixels_allowed
from carp.images.loading.in_memory import hold_in_memory
from carp.images.loading.loader import one_ahead, stack
from carp.images.loading.order import even_batches, permutation
from carp.images.loading.quarantine import Unreadable
from carp.images.loading.workers import by_workers
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.views.batch_views import batch_views
from carp.images.views.interpolation import Interpolation
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import ViewKind, crop_and_flip
from carp.random import Purpose, seed_of

_WINDOW = 10_000  # images of neighbouring shards that are mixed


@dataclass(frozen=True)
class CropBatch:
    """The crops of one step."""

    epoch: int
    images: Tensor  # [B, 3, S, S]: floats in [0, 1] or bytes, not yet normalised
    indices: NDArray[np.int64]  # [B]
    unreadable: list[Unreadable]


class Crops:
    """Batches of crops of the images `indices` of a source.

    Small images (up to 64 pixels) are held in memory and cropped one batch at a time, in another thread if `ahead`;
    photographs are decoded and cropped by worker processes, or in this process if there are none.
    """

    def __init__(
        self,
        source: Source,
        indices: NDArray[np.int64],
        *,
        size: int,
        batch_size: int,
        seed: int,
        workers: int = 0,
        ahead: bool = False,
        interpolation: Interpolation = "bicubic",
    ) -> None:
        self._held = hold_in_memory(source, size) if size <= SMALL_IMAGE else None
        self._source, self._kind, self._seed = source, crop_and_flip(size, interpolation), seed
        self.batch_size, self._workers, self._ahead = batch_size, workers, ahead
        self._chosen = np.zeros(len(source), dtype=np.bool_)
        self._chosen[indices] = True
        self.num_images = int(self._chosen.sum())
        self._batches = even_batches(self.num_images, batch_size)
        self.steps_per_epoch = len(self._batches)

    def batches(self, first_step: int, last_step: int) -> Generator[CropBatch]:
        """Yield the batches of steps first_step … last_step − 1, counted over all epochs."""
        if self._held is None:
            yield from self._photos(first_step, last_step)
            return
        batches = self._small(self._held, first_step, last_step)
        yield from one_ahead(batches) if self._ahead else batches

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the chosen images in the order of an epoch."""
        window = _WINDOW if self._source.window is None else min(_WINDOW, self._source.window)
        seed = seed_of(self._seed, Purpose.GRID_ORDER, epoch)
        order = permutation(len(self._source), seed, groups=self._source.groups, window=max(1, window))
        return order[self._chosen[order]]

    def images_until(self, step: int) -> int:
        """Return the number of images in all steps before this one."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return epoch * self.num_images + (self._batches[place].start if place else 0)

    def _steps(self, first_step: int, last_step: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(epoch, indices) of every step; under torchrun, this process's share of the indices."""
        epoch_order, order = -1, np.empty(0, dtype=np.int64)
        for step in range(first_step, last_step):
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != epoch_order:
                epoch_order, order = epoch, self.of_epoch(epoch)
            due = order[self._batches[place]]
            yield epoch, due[distributed.own_share(len(due))]

    def _small(self, source: ArraySource, first_step: int, last_step: int) -> Iterator[CropBatch]:
        bad = source.unreadable
        for epoch, due in self._steps(first_step, last_step):
            indices = due[[i not in bad for i in due.tolist()]] if bad else due
            (images,) = batch_views(source.images[indices], [self._kind], seed=self._seed, epoch=epoch, indices=indices)
            yield CropBatch(epoch, images, indices, [bad[i] for i in due.tolist() if i in bad])

    def _photos(self, first_step: int, last_step: int) -> Generator[CropBatch]:
        items = ([(epoch, int(i)) for i in indices] for epoch, indices in self._steps(first_step, last_step))
        with closing(by_workers(_Photos(self._source, self._kind, self._seed), items, self._workers)) as made:
            for (epoch, _), crops in zip(self._steps(first_step, last_step), made, strict=True):
                if isinstance(crops, DataError):
                    raise crops
                yield CropBatch(epoch, *crops)


_Made = tuple[Tensor, NDArray[np.int64], list[Unreadable]]  # a batch without its epoch


class _Photos(Dataset[_Made | DataError]):
    """The crops of a batch by (epoch, index); errors are values, because raised ones would arrive as tracebacks."""

    def __init__(self, source: Source, kind: ViewKind, seed: int) -> None:
        self._source, self._kind, self._seed = source, kind, seed
        self._max_pixels = pixels_allowed()

    def __getitems__(self, items: list[tuple[int, int]]) -> _Made | DataError:
        crops, indices, unreadable = list[Tensor](), list[int](), list[Unreadable]()
        for epoch, index in items:
            try:
                crops.append(self._crop(epoch, index))
                indices.append(index)
            except UnreadableImageError as error:
                unreadable.append(Unreadable(index, error.place, error.reason))
            except DataError as error:
                return plain(error)
        size = self._kind.size
        images = stack(crops) if crops else torch.empty(0, 3, size, size, dtype=torch.uint8)
        return images, np.array(indices, dtype=np.int64), unreadable

    def _crop(self, epoch: int, index: int) -> Tensor:
        with pixel_limit(self._max_pixels):
            stored, place = self._source.fetch(index), self._source.place(index)
            (crop,) = photo_views(stored, place, [self._kind], seed=self._seed, epoch=epoch, index=index)
        return crop
