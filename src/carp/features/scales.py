"""Features for retrieval: images at their own size and shape, at one or more scales, optionally cropped to a box.

Shapes: N images, F features, B images of one size, H height, W width.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from carp.errors import ConfigError, DataError, ModelError
from carp.features.extract import Features, Progress
from carp.images.decoding.decode import Pixels
from carp.images.loading.loader import normalise
from carp.images.source import Source, read

ONE_SCALE = (1.0,)
THREE_SCALES = (1.0, 1 / math.sqrt(2), 0.5)  # DINO's multi-scale
Boxes = NDArray[np.float64]

_BYTES_AT_A_TIME = 2**26  # of images that wait for others of their size
_DECODED_AT_A_TIME = 32
_PIXELS_AT_A_TIME = 2**20  # per batch: the first layers of a ResNet take a kilobyte per pixel


def _silent(_done: int, _all: int) -> None:
    pass


@torch.inference_mode()
def extract_scales(
    encoder: nn.Module,
    source: Source,
    *,
    device: torch.device,
    scales: Sequence[float] = ONE_SCALE,
    boxes: Boxes | None = None,
    max_side: int | None = None,
    square: int | None = None,
    batch_size: int = 16,
    progress: Progress = _silent,
) -> Features:
    """Return pooled features [N, F] of all images of a source, with batch norm in evaluation mode.

    An image is cropped to its box, then reduced if its longer side exceeds `max_side`; it keeps its aspect ratio. Other
    scales are computed from the normalised image by linear interpolation. The features of all scales are averaged
    without normalisation, as in DINO's evaluation; the cosine that follows does not depend on their length.

    Args:
        encoder: Images [B, 3, H, W] of any size to pooled features [B, F].
        source: The images; an unreadable image is an error.
        device: Device of the encoder.
        scales: Sizes relative to the image.
        boxes: Left, top, right and bottom in pixels of the upright image, [N, 4]; None uses whole images.
        max_side: Larger images are reduced to this length of their longer side; None keeps all sizes.
        square: Instead, resize every image to a square of this side, as copy detection does.
        batch_size: Maximum number of images of one size per batch; fewer if they are large.
        progress: Called with (images done, all images).
    """
    _check(source, scales, boxes, max_side, square)
    was_training = encoder.training
    encoder.eval()
    features: Features | None = None
    done = 0
    try:
        for indices, pixels in _batches(source, boxes, max_side, square, batch_size):
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
            found = _encode(encoder, normalise(images, device, channels_last=True), scales)
            if features is None:
                features = np.empty((len(source), found.shape[1]), dtype=np.float32)
            features[indices] = found
            done += len(indices)
            progress(done, len(source))
    finally:
        encoder.train(was_training)
    assert features is not None
    return features


def _check(
    source: Source, scales: Sequence[float], boxes: Boxes | None, max_side: int | None, square: int | None
) -> None:
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ConfigError(f"scales must be numbers above 0, received {list(scales)}.")
    for name, side in (("max_side", max_side), ("square", square)):
        if side is not None and side < 1:
            raise ConfigError(f"{name} must be at least 1 pixel, received {side}.")
    if boxes is not None and boxes.shape != (len(source), 4):
        raise DataError(f"every image needs a box of 4 numbers, received {boxes.shape} for {len(source)} images.")
    if not len(source):
        raise DataError(f"{source.name} has no images.")


def _encode(encoder: nn.Module, images_B3HW: Tensor, scales: Sequence[float]) -> Features:
    """Return the mean of the features over scales."""
    total_BF: Tensor | None = None
    for scale in scales:
        scaled = images_B3HW if scale == 1 else _rescaled(images_B3HW, scale)
        try:
            features_BF: Tensor = encoder(scaled).float()
        except (RuntimeError, AssertionError, ValueError) as error:
            height, width = scaled.shape[2:]
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ModelError(
                f"this encoder cannot take an image of {width}×{height}: {reason}. Retrieval needs an encoder for "
                "images of any size. Use a ResNet, for instance."
            ) from error
        total_BF = features_BF if total_BF is None else total_BF + features_BF
    assert total_BF is not None
    return (total_BF / len(scales)).cpu().numpy()


def _rescaled(images_B3HW: Tensor, scale: float) -> Tensor:
    if min(int(side * scale) for side in images_B3HW.shape[2:]) < 1:  # a very thin image keeps one pixel
        size = [max(1, int(side * scale)) for side in images_B3HW.shape[2:]]
        return F.interpolate(images_B3HW, size=size, mode="bilinear", align_corners=False)
    return F.interpolate(images_B3HW, scale_factor=scale, mode="bilinear", align_corners=False)


def _batches(
    source: Source, boxes: Boxes | None, max_side: int | None, square: int | None, batch_size: int
) -> Iterator[tuple[list[int], Pixels]]:
    """Yield the indices and the images of one size, [B, H, W, 3].

    Images wait until there are 64 MB of them, and are then grouped by size, so the batches depend on the images alone.
    """
    waiting: dict[tuple[int, int, int], list[tuple[int, Pixels]]] = {}
    bytes_waiting = 0

    def prepared(index: int) -> Pixels:
        box = None if boxes is None else boxes[index]
        return _prepared(read(source, index), box, max_side, square, source.place(index))

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(source), _DECODED_AT_A_TIME):
            part = range(start, min(start + _DECODED_AT_A_TIME, len(source)))
            for index, pixels in zip(part, pool.map(prepared, part), strict=True):
                height, width, channels = pixels.shape
                waiting.setdefault((height, width, channels), []).append((index, pixels))
                bytes_waiting += pixels.nbytes
            if bytes_waiting < _BYTES_AT_A_TIME and part.stop < len(source):
                continue
            for (height, width, _), group in waiting.items():
                count = max(1, min(batch_size, _PIXELS_AT_A_TIME // (height * width)))
                for first in range(0, len(group), count):
                    chosen = group[first : first + count]
                    yield [index for index, _ in chosen], np.stack([pixels for _, pixels in chosen])
            waiting, bytes_waiting = {}, 0


def _prepared(
    pixels: Pixels, box: NDArray[np.float64] | None, max_side: int | None, square: int | None, place: str
) -> Pixels:
    """Crop to the box, then resize."""
    cut = pixels if box is None else _cut(pixels, box, place)
    height, width, _ = cut.shape
    if square is not None:
        return _resized(cut, square, square, Image.Resampling.BICUBIC)
    if max_side is not None and max(height, width) > max_side:
        height, width = thumbnail_size(height, width, max_side)
    return _resized(cut, height, width, Image.Resampling.LANCZOS)


def thumbnail_size(height: int, width: int, max_side: int) -> tuple[int, int]:
    """Return the height and width of a larger image after Pillow's `thumbnail`, which DINO's evaluation uses.

    The shorter side is rounded up or down, whichever is closer to the image's aspect ratio (width / height).
    """
    aspect = width / height
    if aspect <= 1:
        exact = max_side * aspect
        rounded = min(math.floor(exact), math.ceil(exact), key=lambda side: abs(aspect - side / max_side))
        return max_side, max(1, rounded)
    exact = max_side / aspect
    rounded = min(math.floor(exact), math.ceil(exact), key=lambda side: abs(aspect - max_side / max(1, side)))
    return max(1, rounded), max_side


def _resized(pixels: Pixels, height: int, width: int, how: Image.Resampling) -> Pixels:
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), how))


def _cut(pixels: Pixels, box: NDArray[np.float64], place: str) -> Pixels:
    """Crop to the box, with its edges rounded to whole pixels and clipped to the image."""
    height, width, _ = pixels.shape
    if not np.isfinite(box).all():
        raise DataError(f"the box of {place} must be 4 finite numbers, received {box.tolist()}.")
    edges = np.rint(box).clip(0, [width, height, width, height]).astype(int)
    left, top, right, bottom = edges.tolist()
    if right <= left or bottom <= top:
        raise DataError(
            f"the box {box.tolist()} (left, top, right, bottom) is outside {place}, which is {width}×{height}. "
            "Check whether the boxes were made for images of another size."
        )
    return np.ascontiguousarray(pixels[top:bottom, left:right])
