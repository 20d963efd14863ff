"""The one feature extractor: images of any source to vectors, with the transform used for evaluation.

Shapes: M images that can be read, F features, S side.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.config import SMALL_IMAGE
from carp.data.decode import Pixels, fit_square
from carp.data.loader import normalise, one_ahead
from carp.data.memory import HeldSource
from carp.data.quarantine import Unreadable, nothing_to_read
from carp.data.source import ArraySource, Source, read
from carp.errors import UnreadableImageError

Features = NDArray[np.float32]
Progress = Callable[[int, int], None]  # called with (done, all)
_RESIZE = 256 / 224  # photographs: scale the shorter side to 8/7 of the crop, cut the centre


def _silent(_done: int, _all: int) -> None:
    pass


@dataclass(frozen=True)
class Extracted:
    """Features of the images that can be read, and which images these are."""

    features: Features  # [M, F]
    indices: NDArray[np.int64]  # [M], ascending
    unreadable: list[Unreadable]
    name: str  # of the source

    def note(self) -> str | None:
        """A line about what was left out, or None."""
        if not self.unreadable:
            return None
        count, first = len(self.unreadable), self.unreadable[0]
        left_out = f"{count:,} of {count + len(self.indices):,} images of {self.name} cannot be read and are left out"
        return f"{left_out}; the first is {first.place}: {first.reason}."


@torch.inference_mode()
def extract(
    encoder: nn.Module,
    source: Source,
    *,
    size: int,
    device: torch.device,
    batch_size: int = 256,
    strict: bool = False,
    progress: Progress = _silent,
) -> Extracted:
    """Pooled features of all images of a source, batch norm in evaluation mode.

    An image that cannot be read is left out, or raises if `strict`.
    """
    was_training = encoder.training
    encoder.eval()

    def features(images: Tensor) -> Features:
        features_BF: Tensor = encoder(normalise(images, device, channels_last=True))
        return features_BF.float().cpu().numpy()

    try:
        # On a CPU both would share the cores, and the encoder is slower for it than it waits
        return _collect(features, source, size, batch_size, progress, strict=strict, ahead=device.type != "cpu")
    finally:
        encoder.train(was_training)


def raw_pixels(source: Source, *, size: int, progress: Progress = _silent) -> Extracted:
    """The baseline that learns nothing: normalised pixels as features, [M, 3·S·S]."""

    def features(images: Tensor) -> Features:
        return normalise(images, torch.device("cpu")).flatten(1).numpy()

    return _collect(features, source, size, 1024, progress)


def _collect(
    features: Callable[[Tensor], Features],
    source: Source,
    size: int,
    batch_size: int,
    progress: Progress,
    *,
    strict: bool = False,
    ahead: bool = False,
) -> Extracted:
    """Features batch by batch; the next batch is made while the encoder runs if `ahead`."""
    parts, indices, unreadable = list[Features](), list[int](), list[Unreadable]()
    batches = _batches(source, size, batch_size)
    for batch in one_ahead(batches) if ahead else batches:
        for bad in batch.unreadable if strict else ():
            raise UnreadableImageError(bad.place, bad.reason)
        if batch.indices:
            parts.append(features(batch.images))
        indices += batch.indices
        unreadable += batch.unreadable
        progress(len(indices) + len(unreadable), len(source))
    if not indices:
        raise nothing_to_read(source.name, unreadable)
    return Extracted(np.concatenate(parts), np.array(indices, dtype=np.int64), unreadable, source.name)


def evaluation_crop(pixels: Pixels, size: int) -> Pixels:
    """What the encoder sees of an image at evaluation: [size, size, 3]."""
    if size <= SMALL_IMAGE:
        return fit_square(pixels, size)
    larger = round(size * _RESIZE)
    margin = (larger - size) // 2
    return fit_square(pixels, larger)[margin : margin + size, margin : margin + size]


@dataclass(frozen=True)
class _Batch:
    images: Tensor  # bytes [B, 3, S, S]
    indices: list[int]
    unreadable: list[Unreadable]


def _batches(source: Source, size: int, batch_size: int) -> Iterator[_Batch]:
    starts = range(0, len(source), batch_size)
    if isinstance(source, ArraySource) and source.images.shape[1:3] == (size, size) and size <= SMALL_IMAGE:
        bad = source.unreadable if isinstance(source, HeldSource) else {}
        for start in starts:
            images = source.images[start : start + batch_size]
            indices = [i for i in range(start, start + len(images)) if i not in bad]
            unreadable = [bad[i] for i in range(start, start + len(images)) if i in bad]
            yield _Batch(_to_tensor(source.images[indices] if unreadable else images), indices, unreadable)
        return

    def crop(index: int) -> Pixels | Unreadable:
        try:
            return evaluation_crop(read(source, index), size)
        except UnreadableImageError as error:
            return Unreadable(index, error.place, error.reason)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in starts:
            made = list(pool.map(crop, range(start, min(start + batch_size, len(source)))))
            indices = [start + i for i, item in enumerate(made) if isinstance(item, np.ndarray)]
            crops = [item for item in made if isinstance(item, np.ndarray)]
            images = np.stack(crops) if crops else np.empty((0, size, size, 3), dtype=np.uint8)
            yield _Batch(_to_tensor(images), indices, [item for item in made if isinstance(item, Unreadable)])


def _to_tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(images if images.flags.writeable else images.copy()).permute(0, 3, 1, 2)
