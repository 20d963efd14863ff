"""Batches of views in a fixed order, starting at any step.

The order of an epoch is a permutation drawn from (seed, epoch). Small images are held in memory and augmented one batch
at a time; photographs are decoded and augmented one at a time by worker processes. An image that cannot be read is
replaced by another, with the view parameters of the image that it replaces. If a run has more than one process, each
produces its own share of every batch.

Shapes: V views, B images, S side of a view.
"""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from carp.compute import distributed
from carp.compute.device import choose_device
from carp.config import IMAGENET_MEAN, IMAGENET_STD, LoaderSettings
from carp.errors import BadImagesError, DataError, StorageError, UnreadableImageError, plain
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.chunks import Assembly, chunk_size, in_chunks
from carp.images.loading.in_memory import is_held, is_readable
from carp.images.loading.order import Order
from carp.images.loading.quarantine import Misses, Quarantine, Unreadable, nothing_instead, proves_too_many, substitutes
from carp.images.loading.workers import by_workers
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.views.batch_views import batch_views
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import view_kinds

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """This process's share of the views of one optimiser step."""

    step: int
    epoch: int
    indices: NDArray[np.int64]
    views: list[Tensor]  # V tensors [B, 3, S, S]: floats in [0, 1] or bytes, not yet normalised
    num_images: int  # of all processes


class Loader(Protocol):
    """Makes the batches of a run."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of full batches in an epoch."""

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""


class SmallImageLoader:
    """Augments whole batches of images held in memory; with `ahead`, the next one while the current one is in use."""

    def __init__(self, source: ArraySource, config: LoaderSettings, *, ahead: bool = False) -> None:
        self._ahead = ahead
        self._source, self._kinds, self._seed = source, view_kinds(config), config.seed
        self._is_readable = is_readable(source)
        self._order = Order.of_source(source, config)
        self.steps_per_epoch = self._order.steps_per_epoch

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""
        batches = self._in_turn(first_step, last_step)
        yield from one_ahead(batches) if self._ahead else batches

    def _in_turn(self, first_step: int, last_step: int) -> Iterator[Batch]:
        own = slice(*distributed.share(self._order.batch_size, distributed.rank()))
        for step, epoch, due in self._order.steps(first_step, last_step):
            taken, indices = self._taken(epoch, due), due[own]  # for all processes, so that all or none fail
            images = self._source.images[taken[own]]
            views = batch_views(images, self._kinds, seed=self._seed, epoch=epoch, indices=indices)
            yield Batch(step, epoch, indices, views, self._order.batch_size)

    def _taken(self, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices, with those of unreadable images replaced."""
        taken = indices.copy()
        for row in np.flatnonzero(~self._is_readable[indices]):
            due = int(indices[row])
            others = substitutes(len(self._source), seed=self._seed, epoch=epoch, index=due)
            try:
                taken[row] = next(other for other in others if self._is_readable[other])
            except StopIteration:
                raise nothing_instead(self._source.place(due)) from None
        return taken


def one_ahead(batches: Iterator[T]) -> Generator[T]:
    """Yield the same batches, each prepared in a thread while the previous one is in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="views") as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


def own_parts(order: Order, first_step: int, last_step: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield (step, epoch, indices) of this process's share of every batch."""
    own = slice(*distributed.share(order.batch_size, distributed.rank()))
    for step, epoch, indices in order.steps(first_step, last_step):
        yield step, epoch, indices[own]


class PhotoLoader:
    """Decodes and augments photographs in worker processes."""

    def __init__(self, source: Source, config: LoaderSettings, quarantine: Quarantine | None = None) -> None:
        self._order = Order.of_source(source, config)
        self.steps_per_epoch = self._order.steps_per_epoch
        self._dataset = _Photos(source, config)
        self._workers = config.workers
        self._chunk = chunk_size(
            distributed.largest_share(config.batch_size),
            sum(3 * kind.size**2 for kind in view_kinds(config)),
            distributed.share_here(config.workers),
        )
        self._pinned = choose_device(config.device).type == "cuda"
        self._quarantine = Quarantine(len(source), config.max_bad_share) if quarantine is None else quarantine

    def batches(self, first_step: int, last_step: int) -> Generator[Batch]:
        """Yield the batches of steps first_step … last_step − 1."""
        own = own_parts(self._order, first_step, last_step)
        items = (
            [(epoch, int(i)) for i in chunk] for _, epoch, indices in own for chunk in in_chunks(indices, self._chunk)
        )
        with closing(by_workers(self._dataset, items, self._workers)) as made:
            for step, epoch, indices in own_parts(self._order, first_step, last_step):
                rendered = self._assemble(made, indices)
                misses, error = _of_all_processes(rendered)
                self._quarantine.add(misses)
                if error is not None:
                    raise error
                yield Batch(step, epoch, indices, rendered.views, self._order.batch_size)

    def _assemble(self, made: "Iterator[_Rendered]", indices: NDArray[np.int64]) -> "_Rendered":
        """Put the chunks of a batch together; the first error ends it."""
        whole, misses = Assembly(len(indices), pinned=self._pinned), Misses()
        for _ in in_chunks(indices, self._chunk):
            part = next(made)
            misses.extend(part.misses)
            if part.error is not None:
                return _Rendered([], misses, part.error)
            whole.add(part.views)
        return _Rendered(whole.views, misses)


@dataclass(frozen=True)
class _Rendered:
    """A batch from a worker: views, or an error as a value, because a raised one would arrive as a traceback."""

    views: list[Tensor]
    misses: Misses
    error: DataError | None = None


def _of_all_processes(rendered: _Rendered) -> tuple[Misses, DataError | None]:
    """Return the misses of all processes and the first of their errors, so that all processes stop at the same step."""
    own, error = rendered.misses, rendered.error
    nothing = error is None and not own.unreadable
    gathered = distributed.gather(None if nothing else [asdict(own), str(error or ""), type(error).__name__])
    if len(gathered) == 1:
        return own, error
    misses, errors = Misses(), list[DataError]()
    kinds = {kind.__name__: kind for kind in (DataError, BadImagesError, StorageError)}
    for one, message, kind in filter(None, gathered):
        bad = [Unreadable(**row) for row in one["unreadable"]]
        misses.extend(Misses(bad, one["drawn"], one["drawn_unreadable"]))
        if message:
            errors.append(kinds[kind](message))
    return misses, errors[0] if errors else None


class _Photos(Dataset[_Rendered]):
    """The views of a batch by (epoch, index), which is all that a worker needs."""

    def __init__(self, source: Source, config: LoaderSettings) -> None:
        self._source, self._kinds, self._seed = source, view_kinds(config), config.seed
        self._max_bad_share = config.max_bad_share
        self._max_pixels = config.max_image_pixels

    def __getitems__(self, items: list[tuple[int, int]]) -> _Rendered:
        misses = Misses()
        try:
            with pixel_limit(self._max_pixels):
                views = [self._views(epoch, index, misses) for epoch, index in items]
        except DataError as error:
            return _Rendered([], misses, plain(error))
        return _Rendered([stack(view) for view in zip(*views, strict=True)], misses)

    def _views(self, epoch: int, index: int, misses: Misses) -> list[Tensor]:
        """Return the views of an image, or of the first of its substitutes that can be read."""
        others = substitutes(len(self._source), seed=self._seed, epoch=epoch, index=index)
        for drawn, taken in enumerate(chain([index], others)):
            misses.drawn += drawn > 0
            try:
                stored, place = self._source.fetch(taken), self._source.place(taken)
                return photo_views(stored, place, self._kinds, seed=self._seed, epoch=epoch, index=index)
            except UnreadableImageError as error:
                misses.unreadable.append(Unreadable(taken, error.place, error.reason))
                misses.drawn_unreadable += drawn > 0
            if proves_too_many(misses.drawn, misses.drawn_unreadable, self._max_bad_share):
                break
        raise nothing_instead(self._source.place(index))


def stack(views: Sequence[Tensor]) -> Tensor:
    """Stack views [3, S, S] to [B, 3, S, S], keeping the channels-last order that photographs have."""
    return torch.stack([view.permute(1, 2, 0) for view in views]).permute(0, 3, 1, 2)


def make_loader(source: Source, config: LoaderSettings, quarantine: Quarantine | None = None) -> Loader:
    """Return the loader for a source and a size of views; photographs that cannot be read are put into quarantine."""
    if isinstance(source, ArraySource) and is_held(config):
        # On a CPU, a thread gains nothing: the step already uses all cores
        return SmallImageLoader(source, config, ahead=choose_device(config.device).type != "cpu")
    return PhotoLoader(source, config, quarantine)


def normalise(
    images: Tensor,
    device: torch.device,
    *,
    channels_last: bool = False,
    mean: Sequence[float] = IMAGENET_MEAN,
    deviation: Sequence[float] = IMAGENET_STD,
) -> Tensor:
    """Move images (bytes, or floats in [0, 1]) to the device and normalise them by mean and deviation."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = images.to(device, non_blocking=True)
    mean_311, std_311 = _constant(tuple(mean), device), _constant(tuple(deviation), device)
    if x.dtype == torch.uint8:
        return _normalise_bytes(x, 1 / (255 * std_311), -mean_311 / std_311, layout)
    floats = torch.empty(x.shape, device=device, memory_format=layout)
    return torch.addcmul(-mean_311 / std_311, x, 1 / std_311, out=floats)


@cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one number per channel, [3, 1, 1]; copied to the device once."""
    return torch.tensor(values, device=device).view(3, 1, 1)


def _normalise_bytes(x: Tensor, scale: Tensor, shift: Tensor, layout: torch.memory_format) -> Tensor:
    """x·scale + shift as floats, in memory order; on a CPU one image at a time, so that it stays in the cache."""
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
