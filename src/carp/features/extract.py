"""The one feature extractor: images of any source to vectors, with the transform used for evaluation.

Shapes: N images, F features, S side.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.config import SMALL_IMAGE
from carp.data.decode import Pixels, fit_square
from carp.data.loader import normalise
from carp.data.source import ArraySource, Source, read

Features = NDArray[np.float32]
Progress = Callable[[int, int], None]  # called with (done, all)
_RESIZE = 256 / 224  # photographs: scale the shorter side to 8/7 of the crop, cut the centre


def _silent(_done: int, _all: int) -> None:
    pass


@torch.inference_mode()
def extract(
    encoder: nn.Module,
    source: Source,
    *,
    size: int,
    device: torch.device,
    batch_size: int = 256,
    progress: Progress = _silent,
) -> Features:
    """Pooled features [N, F] of all images of a source, batch norm in evaluation mode."""
    was_training = encoder.training
    encoder.eval()
    parts: list[Features] = []
    done = 0
    for images in _batches(source, size, batch_size):
        features_BF = encoder(normalise(images, device, channels_last=True))
        parts.append(features_BF.float().cpu().numpy())
        done += len(images)
        progress(done, len(source))
    encoder.train(was_training)
    return np.concatenate(parts)


def raw_pixels(source: Source, *, size: int, progress: Progress = _silent) -> Features:
    """The baseline that learns nothing: normalised pixels as features, [N, 3·S·S]."""
    parts: list[Features] = []
    done = 0
    for images in _batches(source, size, 1024):
        parts.append(normalise(images, torch.device("cpu")).flatten(1).numpy())
        done += len(images)
        progress(done, len(source))
    return np.concatenate(parts)


def evaluation_crop(pixels: Pixels, size: int) -> Pixels:
    """What the encoder sees of an image at evaluation: [size, size, 3]."""
    if size <= SMALL_IMAGE:
        return fit_square(pixels, size)
    larger = round(size * _RESIZE)
    margin = (larger - size) // 2
    return fit_square(pixels, larger)[margin : margin + size, margin : margin + size]


def _batches(source: Source, size: int, batch_size: int) -> Iterator[Tensor]:
    """Bytes [B, 3, S, S]."""
    if isinstance(source, ArraySource) and source.images.shape[1:3] == (size, size) and size <= SMALL_IMAGE:
        for start in range(0, len(source), batch_size):
            yield _to_tensor(source.images[start : start + batch_size])
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(source), batch_size):
            indices = range(start, min(start + batch_size, len(source)))
            crops = pool.map(lambda i: evaluation_crop(read(source, i), size), indices)
            yield _to_tensor(np.stack(list(crops)))


def _to_tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(images if images.flags.writeable else images.copy()).permute(0, 3, 1, 2)
