"""The one feature extractor: it maps the images of any source to vectors, with the transform used for evaluation.

Shapes: M images that can be read, F features, S side.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.compute.device import check_precision
from carp.compute.threads import TunedThreads, available_cores
from carp.config import SMALL_IMAGE
from carp.errors import UnreadableImageError
from carp.features.feature_options import Precision
from carp.images.decoding.decode import Pixels
from carp.images.loading.loader import normalise, one_ahead
from carp.images.loading.quarantine import Unreadable, nothing_to_read
from carp.images.source import Source, read
from carp.images.sources.array import ArraySource
from carp.images.views.centre_crop import resize_and_crop
from carp.images.views.interpolation import Interpolation

Features = NDArray[np.float32]
Progress = Callable[[int, int], None]  # called with (done, all)
RAW_PIXELS_SIDE = 32  # images are reduced to this side if their pixels are the features
_RESIZE = 256 / 224  # photographs: resize the shorter side to 8/7 of the crop


def _silent(_done: int, _all: int) -> None:
    pass


@dataclass(frozen=True)
class Extracted:
    """Features of the readable images, and the numbers of these images."""

    features: Features  # [M, F]
    indices: NDArray[np.int64]  # [M], ascending
    unreadable: list[Unreadable]
    name: str  # of the source

    def note(self) -> str | None:
        """Return one line about the images that were left out, or None."""
        return left_out(self.unreadable, len(self.indices), self.name)


def left_out(unreadable: Sequence[Unreadable], num_readable: int, name: str) -> str | None:
    """Return one line about the unreadable images of a source, or None."""
    if not unreadable:
        return None
    count, first = len(unreadable), unreadable[0]
    images = f"{count:,} of {count + num_readable:,} images of {name} cannot be read and are left out"
    return f"{images}; the first is {first.place}: {first.reason}."


@dataclass(frozen=True)
class FeatureBatch:
    """Features of a few consecutive images."""

    features: Features  # [m, F]; [0, 0] if none of the images can be read
    indices: list[int]
    unreadable: list[Unreadable]


def extract(
    encoder: nn.Module,
    source: Source,
    *,
    size: int,
    device: torch.device,
    batch_size: int = 256,
    strict: bool = False,
    may_be_empty: bool = False,
    progress: Progress = _silent,
    precision: Precision = "fp32",
    resize: int | None = None,
    interpolation: Interpolation = "bicubic",
) -> Extracted:
    """Return pooled features of all images of a source, with batch norm in evaluation mode.

    An unreadable image is left out, or is an error if `strict`. If all are unreadable, this is an error, or with
    `may_be_empty` the features are [0, 0].
    """
    batches = feature_batches(
        encoder,
        source,
        size=size,
        device=device,
        batch_size=batch_size,
        precision=precision,
        resize=resize,
        interpolation=interpolation,
    )
    return _collect(batches, source, progress, strict=strict, may_be_empty=may_be_empty)


def feature_batches(
    encoder: nn.Module,
    source: Source,
    *,
    size: int,
    device: torch.device,
    batch_size: int = 256,
    precision: Precision = "fp32",
    resize: int | None = None,
    interpolation: Interpolation = "bicubic",
) -> Generator[FeatureBatch]:
    """Yield the features batch by batch, as float32 even if the encoder runs in bf16."""
    check_precision(precision, device)
    was_training = encoder.training
    encoder.eval()
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")

    def features(images: Tensor) -> Features:
        with torch.inference_mode(), autocast:
            features_BF: Tensor = encoder(normalise(images, device, channels_last=True))
        return features_BF.float().cpu().numpy()

    try:
        batches = _batches(source, size, batch_size, resize, interpolation)
        none = np.empty((0, 0), dtype=np.float32)
        with TunedThreads(device) as threads:
            # On a CPU, decoding ahead would slow the encoder down by more than it saves
            for batch in batches if device.type == "cpu" else one_ahead(batches):
                found = none
                if batch.indices:
                    with threads.unit():
                        found = features(batch.images)
                yield FeatureBatch(found, batch.indices, batch.unreadable)
    finally:
        encoder.train(was_training)


def _collect(
    batches: Iterable[FeatureBatch], source: Source, progress: Progress, *, strict: bool = False, may_be_empty: bool
) -> Extracted:
    parts, indices, unreadable = list[Features](), list[int](), list[Unreadable]()
    for batch in batches:
        for bad in batch.unreadable if strict else ():
            raise UnreadableImageError(bad.place, bad.reason)
        if batch.indices:
            parts.append(batch.features)
        indices += batch.indices
        unreadable += batch.unreadable
        progress(len(indices) + len(unreadable), len(source))
    if not indices and not may_be_empty:
        raise nothing_to_read(source.name, unreadable)
    features = np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)
    return Extracted(features, np.array(indices, dtype=np.int64), unreadable, source.name)


def default_resize(size: int) -> int:
    """Return the length of the shorter side before the centre crop; encoders of small images see the whole image."""
    return size if size <= SMALL_IMAGE else round(size * _RESIZE)


def evaluation_crop(
    pixels: Pixels, size: int, resize: int | None = None, interpolation: Interpolation = "bicubic"
) -> Pixels:
    """Return what evaluation sees of an image: the shorter side resized to `resize`, then the centre crop."""
    return resize_and_crop(pixels, default_resize(size) if resize is None else resize, size, interpolation)


@dataclass(frozen=True)
class _Batch:
    images: Tensor  # bytes [B, 3, S, S]
    indices: list[int]
    unreadable: list[Unreadable]


def _batches(
    source: Source,
    size: int,
    batch_size: int,
    resize: int | None = None,
    interpolation: Interpolation = "bicubic",
) -> Iterator[_Batch]:
    starts = range(0, len(source), batch_size)
    as_it_is = size == (default_resize(size) if resize is None else resize)
    if isinstance(source, ArraySource) and source.images.shape[1:3] == (size, size) and as_it_is:
        bad = source.unreadable
        for start in starts:
            images = source.images[start : start + batch_size]
            indices = [i for i in range(start, start + len(images)) if i not in bad]
            unreadable = [bad[i] for i in range(start, start + len(images)) if i in bad]
            yield _Batch(_to_tensor(source.images[indices] if unreadable else images), indices, unreadable)
        return

    def crop(index: int) -> Pixels | Unreadable:
        try:
            return evaluation_crop(read(source, index), size, resize, interpolation)
        except UnreadableImageError as error:
            return Unreadable(index, error.place, error.reason)

    with ThreadPoolExecutor(available_cores()) as pool:
        for start in starts:
            made = list(pool.map(crop, range(start, min(start + batch_size, len(source)))))
            indices = [start + i for i, item in enumerate(made) if isinstance(item, np.ndarray)]
            crops = [item for item in made if isinstance(item, np.ndarray)]
            images = np.stack(crops) if crops else np.empty((0, size, size, 3), dtype=np.uint8)
            yield _Batch(_to_tensor(images), indices, [item for item in made if isinstance(item, Unreadable)])


def _to_tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(images if images.flags.writeable else images.copy()).permute(0, 3, 1, 2)
