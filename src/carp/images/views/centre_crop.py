"""The transform of evaluation: scale the shorter side and crop the centre, as torchvision does with Pillow's images.

`Resize(resize)` scales the shorter side to `resize` and the longer one to `int(resize · long / short)` pixels;
`CenterCrop(size)` crops at `round((side - size) / 2)` and fills with black where the image is smaller. Published
numbers depend on these two, so the pixels here are the same, bit for bit.
"""

import numpy as np
from PIL import Image

from carp.images.decoding.decode import Pixels
from carp.images.views.interpolation import Interpolation

TRANSFORM = 2
"""The version of this transform, part of the origin of features. Version 1 resampled a fractional box."""

_MOST_PIXELS = 2**25  # of a scaled image
_METHODS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def resize_and_crop(pixels: Pixels, resize: int, size: int, interpolation: Interpolation = "bicubic") -> Pixels:
    """Return the centre [size, size, 3] of an image [H, W, 3] whose shorter side is scaled to `resize`.

    An image so long that it would be scaled to more than 2^25 pixels (at 256: 512 times as long as wide) is first cut
    to its middle. For all others, every pixel equals torchvision's.
    """
    height, width, _ = pixels.shape
    if height == width == resize == size:
        return pixels
    if resize * int(resize * max(height, width) / min(height, width)) > _MOST_PIXELS:
        pixels = _middle(pixels, times=2 * -(-size // resize) + 5)  # beyond the reach of the interpolation
        height, width, _ = pixels.shape
    long = int(resize * max(height, width) / min(height, width))
    new_width, new_height = (resize, long) if width <= height else (long, resize)
    image = Image.fromarray(np.ascontiguousarray(pixels)).resize((new_width, new_height), _METHODS[interpolation])
    left, top = _offset(new_width, size), _offset(new_height, size)
    return np.array(image.crop((left, top, left + size, top + size)))  # black outside the image


def _offset(side: int, size: int) -> int:
    """Return where the crop starts; negative if the image is smaller."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)


def _middle(pixels: Pixels, times: int) -> Pixels:
    """Return the middle of a long image, `times` as long as wide, around the same centre."""
    height, width, _ = pixels.shape
    short, long = sorted((height, width))
    cut = max(0, long - times * short) // 2
    return pixels[cut : long - cut] if height > width else pixels[:, cut : long - cut]
