"""From a file to pixels."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from carp.errors import DataError

Pixels = NDArray[np.uint8]


def decode(path: Path) -> Pixels:
    """Read an image file as RGB bytes [H, W, 3], turned upright by its EXIF orientation."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            return np.array(upright.convert("RGB"))
    except FileNotFoundError:
        raise DataError(f"there is no image file {path}.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot read the image {path}: {reason}. Remove or replace the file, then run the same command again; a "
            "run that has a checkpoint needs a new --out then, as its images have changed."
        ) from error


def fit_square(pixels: Pixels, size: int) -> Pixels:
    """Scale the shorter side to `size` (bicubic) and cut the centre: [size, size, 3]."""
    height, width, _ = pixels.shape
    if height == width == size:
        return pixels
    image = Image.fromarray(pixels)
    return np.array(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC))
