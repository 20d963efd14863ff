"""Chunks of a batch, which workers prepare one at a time, so that views on their way need little shared memory.

A batch of 4,096 photographs with two views of 224 pixels has 1.2 GB. If each worker prepared whole batches, 16 workers
would need 40 GB of shared memory, and the first batch would be the work of a single one.
"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.console.quantities import in_bytes
from carp.errors import ConfigError

PREFETCH = 2  # chunks per worker that are on their way
_MOST_BYTES = 2**30  # of views on their way to one process
_USABLE = 0.8  # share of the free shared memory
_SHARED_MEMORY = Path("/dev/shm")


def chunk_size(images: int, bytes_per_image: int, workers: int) -> int:
    """Images per chunk: all workers share a batch, and what is on its way fits into shared memory."""
    if workers == 0:
        return images
    room, free = _MOST_BYTES, free_shared_memory()
    if free is not None:
        room = min(room, int(_USABLE * free))
    affordable = room // (bytes_per_image * workers * PREFETCH)
    if affordable < 1:
        fewer = room // (bytes_per_image * PREFETCH)
        needed = in_bytes(math.ceil(bytes_per_image * workers * PREFETCH / _USABLE))
        raise ConfigError(
            f"workers={workers} needs at least {needed} of shared memory, but only {in_bytes(free or room)} is free in "
            f"{_SHARED_MEMORY} for this process. Give the container more (docker run --shm-size=1g), or set "
            f"workers={fewer}."
        )
    return min(affordable, math.ceil(images / workers))


def free_shared_memory() -> int | None:
    """Bytes of shared memory that this process may use: its share of what is free on this machine."""
    if not _SHARED_MEMORY.is_dir():
        return None  # not Linux: workers use files
    return shutil.disk_usage(_SHARED_MEMORY).free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def in_chunks(indices: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Yield consecutive parts of at most `size` indices."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


class Assembly:
    """The views of a batch, copied together chunk by chunk, so that the memory of each chunk is free again at once."""

    def __init__(self, images: int, *, pinned: bool = False) -> None:
        """`pinned` memory is copied to a GPU faster, and while the host does something else."""
        self._images, self._filled, self._pinned = images, 0, pinned
        self.views: list[Tensor] = []

    def add(self, views: Sequence[Tensor]) -> None:
        """Append the views [b, 3, S, S] of the next images."""
        count = len(views[0])
        if count == self._images:
            self.views = list(views)  # a single chunk
        else:
            self.views = self.views or [_empty_like(view, self._images, pinned=self._pinned) for view in views]
            for whole, part in zip(self.views, views, strict=True):
                whole[self._filled : self._filled + count].copy_(part)
        self._filled += count


def _empty_like(view: Tensor, images: int, *, pinned: bool) -> Tensor:
    """A tensor [B, 3, S, S] with the type and the channels-last order of a part of it."""
    _, channels, *sides = view.shape
    return torch.empty(images, *sides, channels, dtype=view.dtype, pin_memory=pinned).permute(0, 3, 1, 2)
