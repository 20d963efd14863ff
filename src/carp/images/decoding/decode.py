"""From a stored image to pixels.

Pillow reads the header of every file and decodes all formats except ordinary JPEGs. These are decoded by libjpeg-turbo
(simplejpeg), which gives the same bytes faster, and even faster at half, a quarter or an eighth of the size. No memory
is allocated for pixels before the size in the header has been compared with the limits (`decode_limits.py`).
"""

import ctypes
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from carp.errors import UnreadableImageError
from carp.files.regular import check_regular, read_regular
from carp.images.decoding.decode_limits import (
    bytes_allowed,
    check_bytes,
    check_pixels,
    out_of_memory,
    pixel_limit,
    pixels_allowed,
    room_for,
    too_many_pixels,
)
from carp.images.decoding.image_formats import missing_decoder, pillow_formats, webp_size
from carp.images.decoding.pillow_pixels import BYTES_PER_PIXEL, SWAP_SIDES, Pixels, orientation, pillow_pixels, upright
from carp.images.decoding.transient import retrying

__all__ = [
    "EMPTY",
    "Photo",
    "Pixels",
    "Stored",
    "decode",
    "format_of",
    "open_photo",
    "pixel_limit",
    "pixels_allowed",
    "read_file",
    "size_of",
]

Stored = bytes | Pixels  # an encoded image file, or RGB bytes [H, W, 3]

EMPTY = "the file is empty"  # the reason for a file without bytes
_FAST_FORMATS, _FAST_MODES = {"JPEG", "MPO"}, {"RGB", "L"}
_MOST_SCANS = 500  # of a progressive JPEG; each is a pass over all pixels, and encoders write about ten
_TILE = (322, 323)  # tags of a TIFF: width and length of a tile
# Formats whose decoders allocate an image of their own besides Pillow's
_COPYING, _COPY_BYTES = {"WEBP", "AVIF", "HEIF", "JPEG2000"}, 8
_COEFFICIENT_BYTES = 6  # per pixel of a progressive JPEG, at any size of the output


def _silence() -> None:
    """Stop Pillow and libtiff from printing messages about damage; damage that matters is raised as an error."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without a handler, errors are printed
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    for path in {line.split(maxsplit=5)[-1] for line in lines if "/libtiff" in line}:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)  # already loaded, so this only finds it
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)


_silence()


@dataclass(frozen=True)
class Photo:
    """An image whose upright size is known; `pixels(n)` decodes it, if possible at 1/n of that size, n = 1, 2, 4, 8."""

    height: int
    width: int
    pixels: Callable[[int], Pixels]


def read_file(path: Path) -> bytes:
    """Return the bytes of an image file, which must be a regular file and not too large for an image."""
    try:
        return retrying(partial(_read_image, path), path)
    except FileNotFoundError:
        raise UnreadableImageError(str(path), "there is no such file") from None
    except OSError as error:
        raise UnreadableImageError(str(path), error.strerror or str(error)) from error
    except MemoryError:
        raise out_of_memory(str(path)) from None


def _read_image(path: Path) -> bytes:
    check_bytes(check_regular(path), str(path))
    return read_regular(path, bytes_allowed())


def decode(stored: Stored, place: str) -> Pixels:
    """Return RGB bytes [H, W, 3], turned upright by the EXIF orientation; `place` names the image in errors."""
    return stored if isinstance(stored, np.ndarray) else open_photo(stored, place).pixels(1)


def open_photo(stored: Stored, place: str) -> Photo:
    """Read the header of a JPEG, or decode any other image."""
    if isinstance(stored, np.ndarray):
        return Photo(stored.shape[0], stored.shape[1], lambda _reduce: stored)
    with _named_errors(stored, place), _opened(stored, place) as image:
        if image.format in _FAST_FORMATS and image.mode in _FAST_MODES:
            turn = orientation(image)
            width, height = image.size
            pixels = partial(_jpeg_pixels, stored, place, _Jpeg(width, height, turn, "progressive" in image.info))
            return Photo(width, height, pixels) if turn in SWAP_SIDES else Photo(height, width, pixels)
        decoded = _all_pixels(image, place)
        return Photo(decoded.shape[0], decoded.shape[1], lambda _reduce: decoded)


def size_of(stored: Stored, place: str) -> tuple[int, int]:
    """Return (width, height) from the header, before the image is turned upright."""
    if isinstance(stored, np.ndarray):
        return stored.shape[1], stored.shape[0]
    with _named_errors(stored, place), _opened(stored, place) as image:
        return image.size


def format_of(stored: bytes, place: str) -> str:
    """Return the format of an encoded image, by Pillow's name: JPEG, PNG, …."""
    with _named_errors(stored, place), _opened(stored, place) as image:
        return image.format or "unknown"


_CAMERA = (271, 272)  # EXIF: maker, model
_EXIF, _EXPOSED = 0x8769, 36867  # the block of the exposure, and its time


def has_camera_data(stored: Stored) -> bool:
    """Return whether the EXIF data name the maker or model of a camera, or the time of exposure."""
    if isinstance(stored, np.ndarray):
        return False
    try:
        with Image.open(io.BytesIO(stored)) as image:
            exif = image.getexif()
            return any(exif.get(tag) for tag in _CAMERA) or bool(exif.get_ifd(_EXIF).get(_EXPOSED))
    except Exception:  # damaged EXIF data count as none; the image itself may be fine
        return False


@contextmanager
def _named_errors(stored: bytes, place: str) -> Iterator[None]:
    """Turn any error of a decoder (Pillow's plugins raise nearly anything) into one that names the image."""
    try:
        yield
    except UnreadableImageError:
        raise
    except MemoryError:
        raise out_of_memory(place) from None
    except Exception as error:
        raise UnreadableImageError(place, _reason(stored, error)) from error


def _reason(stored: bytes, error: Exception) -> str:
    if not stored:
        return EMPTY
    if isinstance(error, UnidentifiedImageError):  # its text shows a buffer
        return missing_decoder(stored) or "it is not an image, or its format is not supported"
    return " ".join(str(error).split()).rstrip(".") or f"it is damaged ({type(error).__name__})"


@contextmanager
def _opened(stored: bytes, place: str) -> Iterator[Image.Image]:
    """An image whose header was read and is within the limits."""
    check_bytes(len(stored), place)
    if size := webp_size(stored):
        check_pixels(*size, place)
    try:
        image = Image.open(io.BytesIO(stored), formats=pillow_formats())
    except Image.DecompressionBombError:  # it does not contain the size
        raise too_many_pixels(place) from None
    with image:
        check_pixels(*image.size, place)
        _check_tiles(image, place)
        yield image


def _check_tiles(image: Image.Image, place: str) -> None:
    """Check a TIFF's tiles too: they are decoded one at a time, and may be declared far larger than the image."""
    width, height = (getattr(image, "tag_v2", {}).get(tag, 0) for tag in _TILE)
    if isinstance(width, int) and isinstance(height, int):
        check_pixels(width, height, place)


def _all_pixels(image: Image.Image, place: str) -> Pixels:
    """Return RGB bytes of an opened image, decoded by Pillow."""
    copies = _COPY_BYTES if image.format in _COPYING else 0
    with room_for(image.width * image.height, BYTES_PER_PIXEL + copies, place):
        return pillow_pixels(image)


@dataclass(frozen=True)
class _Jpeg:
    """The header of a JPEG."""

    width: int
    height: int
    turn: int
    progressive: bool


def _jpeg_pixels(stored: bytes, place: str, head: _Jpeg, reduce: int) -> Pixels:
    """Return RGB bytes of a JPEG, at full size from Pillow where the fast decoder fails."""
    if head.progressive and stored.count(b"\xff\xda") > _MOST_SCANS:
        raise UnreadableImageError(place, f"it has more than {_MOST_SCANS} scans, which would take minutes to decode")
    if head.turn != 1 and (head.height % reduce or head.width % reduce):
        reduce = 1  # the last pixel covers only part of a block; turned, it would come first and shift all others
    shape = (-(-head.height // reduce), -(-head.width // reduce), 3)
    bytes_per_pixel = 6 / reduce**2 + (_COEFFICIENT_BYTES if head.progressive else 0)
    try:
        with room_for(head.width * head.height, bytes_per_pixel, place):
            if simplejpeg.decode_jpeg_header(stored)[:2] == (head.height, head.width):  # as checked against the limits
                pixels: Pixels = simplejpeg.decode_jpeg(stored, "RGB", min_height=shape[0], min_width=shape[1])
                if pixels.shape == shape:
                    return upright(pixels, head.turn)
    except ValueError as error:
        if "premature end" in str(error).lower():  # Pillow would fill the rest with grey if there is an end marker
            raise UnreadableImageError(place, "the file is truncated") from error
    except MemoryError:
        raise out_of_memory(place) from None
    with _named_errors(stored, place), _opened(stored, place) as image:
        return _all_pixels(image, place)
