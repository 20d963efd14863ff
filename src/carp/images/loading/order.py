"""Which images belong to which step: a function of (seed, epoch), without any state to save."""

from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from carp.config import LoaderSettings
from carp.errors import DataError
from carp.images.source import Source
from carp.random import Purpose, seed_of


def check_batch_size(num_images: int, batch_size: int) -> None:
    """Raise unless there are enough images for one batch."""
    if num_images < 2:
        raise DataError(
            f"training compares images with each other: it needs at least 2, but received {num_images}. Add images."
        )
    if num_images < batch_size:
        raise DataError(
            f"batch_size is {batch_size} but there are only {num_images} images. Set batch_size={num_images} or less."
        )


def steps_in_epoch(num_images: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch."""
    return num_images // batch_size


class Order:
    """The images of every step.

    The order of an epoch is a permutation of all images; the last ones that do not fill a batch are left out of this
    epoch. Images that are stored in groups (shards) and are best read in sequence are permuted in windows: the groups
    are permuted, neighbours are joined until they hold at least `window` images, and the images of a window are
    permuted.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        seed: int,
        *,
        groups: NDArray[np.int64] | None = None,
        window: int = 10_000,
    ) -> None:
        check_batch_size(num_images, batch_size)
        self.num_images, self.batch_size, self.seed = num_images, batch_size, seed
        self.groups, self.window = groups, window
        self.steps_per_epoch = steps_in_epoch(num_images, batch_size)

    @classmethod
    def of_source(cls, source: Source, config: LoaderSettings) -> Self:
        """Return the order for a source: by windows if its images are stored in groups."""
        window = config.shuffle_buffer if source.window is None else min(config.shuffle_buffer, source.window)
        return cls(len(source), config.batch_size, config.seed, groups=source.groups, window=max(1, window))

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the indices of all batches of an epoch, [steps, B]."""
        order = permutation(
            self.num_images, seed_of(self.seed, Purpose.ORDER, epoch), groups=self.groups, window=self.window
        )
        return order[: self.steps_per_epoch * self.batch_size].reshape(self.steps_per_epoch, self.batch_size)

    def steps(self, first_step: int, last_step: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Yield (step, epoch, indices)."""
        epoch_order, order = -1, np.empty((0, 0), dtype=np.int64)
        for step in range(first_step, last_step):
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != epoch_order:
                epoch_order, order = epoch, self.of_epoch(epoch)
            yield step, epoch, order[place]


def permutation(num_images: int, seed: int, *, groups: NDArray[np.int64] | None, window: int) -> NDArray[np.int64]:
    """Return all images in a random order; those of a source with groups in windows."""
    generator = np.random.Generator(np.random.Philox(seed))
    if groups is None or num_images <= window:
        return generator.permutation(num_images).astype(np.int64, copy=False)
    return _in_windows(groups, window, generator).astype(np.int64, copy=False)


def _in_windows(groups: NDArray[np.int64], window: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return a permutation of all images that stays within a few groups at a time."""
    order = generator.permutation(len(groups))
    window_of = np.empty(len(groups), dtype=np.int64)
    number = held = 0
    left = int(groups.sum())
    for group in order.tolist():
        window_of[group] = number
        held, left = held + int(groups[group]), left - int(groups[group])
        if held >= window and left >= window:  # a remainder smaller than a window joins the last one
            number, held = number + 1, 0
    chance = generator.random(int(groups.sum()))
    return np.lexsort((chance, np.repeat(window_of, groups)))


def even_batches(count: int, most: int) -> list[slice]:
    """Return the fewest batches of at most `most` images, with sizes that differ by at most one.

    A small last batch would have as much weight as a full one.
    """
    number = -(-count // most)
    return [slice(i * count // number, (i + 1) * count // number) for i in range(number)]
