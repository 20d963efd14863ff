"""From what is stored of an image to pixels."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from carp.errors import UnreadableImageError

Pixels = NDArray[np.uint8]
Stored = bytes | Pixels  # an encoded image file, or RGB bytes [H, W, 3]

_BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


def read_file(path: Path) -> bytes:
    """All bytes of an image file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UnreadableImageError(str(path), "there is no such file") from None
    except OSError as error:
        raise UnreadableImageError(str(path), error.strerror or str(error)) from error


def decode(stored: Stored, place: str) -> Pixels:
    """RGB bytes [H, W, 3], turned upright by the EXIF orientation; `place` names the image in errors."""
    if isinstance(stored, np.ndarray):
        return stored
    try:
        with Image.open(io.BytesIO(stored)) as image:
            upright = ImageOps.exif_transpose(image)
            return np.array(upright.convert("RGB"))
    except _BROKEN as error:
        raise UnreadableImageError(place, _reason(stored, error)) from error


def size_of(stored: Stored, place: str) -> tuple[int, int]:
    """(width, height) before any turning, from the head of the file."""
    if isinstance(stored, np.ndarray):
        return stored.shape[1], stored.shape[0]
    try:
        with Image.open(io.BytesIO(stored)) as image:
            return image.size
    except _BROKEN as error:
        raise UnreadableImageError(place, _reason(stored, error)) from error


def _reason(stored: bytes, error: Exception) -> str:
    if not stored:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):  # its text names a buffer
        return "it is no image, or of a kind that is not known"
    return " ".join(str(error).split()).rstrip(".")


def fit_square(pixels: Pixels, size: int) -> Pixels:
    """Scale the shorter side to `size` (bicubic) and cut the centre: [size, size, 3]."""
    height, width, _ = pixels.shape
    if height == width == size:
        return pixels
    image = Image.fromarray(pixels)
    return np.array(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC))
