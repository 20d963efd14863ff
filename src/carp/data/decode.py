"""From what is stored of an image to pixels.

Pillow reads the head of every file and decodes all formats but one: JPEGs of the usual kinds go to libjpeg-turbo
(simplejpeg), which gives the same bytes sooner, and at half, a quarter or an eighth of the size sooner still.
"""

import ctypes
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from carp.config import MAX_IMAGE_PIXELS
from carp.errors import UnreadableImageError

Pixels = NDArray[np.uint8]
Stored = bytes | Pixels  # an encoded image file, or RGB bytes [H, W, 3]

EMPTY = "the file is empty"  # the reason for files of no bytes
_FAST_FORMATS, _FAST_MODES = {"JPEG", "MPO"}, {"RGB", "L"}


def _silence() -> None:
    """Let neither Pillow nor the libtiff inside it print about damage: what they do not survive is an error here."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    for path in {line.split(maxsplit=5)[-1] for line in lines if "/libtiff" in line}:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)  # loaded already: this only finds it
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)


_silence()


@dataclass(frozen=True)
class Photo:
    """An image whose upright size is known; `pixels(n)` decodes it, maybe at one n-th of that size, n = 1, 2, 4, 8."""

    height: int
    width: int
    pixels: Callable[[int], Pixels]


@dataclass
class _Limit:
    pixels: int = MAX_IMAGE_PIXELS


_limit = _Limit()
Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS  # Pillow's own limit must not be in the way of ours


@contextmanager
def pixel_limit(count: int) -> Iterator[None]:
    """Refuse images of more pixels for a while, in all threads of this process."""
    before = _limit.pixels, Image.MAX_IMAGE_PIXELS
    _limit.pixels, Image.MAX_IMAGE_PIXELS = count, max(count, MAX_IMAGE_PIXELS)
    try:
        yield
    finally:
        _limit.pixels, Image.MAX_IMAGE_PIXELS = before


def pixels_allowed() -> int:
    """The limit that holds now, for other processes to keep to."""
    return _limit.pixels


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
    return stored if isinstance(stored, np.ndarray) else open_photo(stored, place).pixels(1)


def open_photo(stored: Stored, place: str) -> Photo:
    """Read the head of a JPEG, or decode any other image."""
    if isinstance(stored, np.ndarray):
        return Photo(stored.shape[0], stored.shape[1], lambda _reduce: stored)
    with _telling(stored, place), _opened(stored, place) as image:
        if image.format in _FAST_FORMATS and image.mode in _FAST_MODES:
            turn = _orientation(image)
            width, height = image.size
            pixels = partial(_jpeg_pixels, stored, place, width, height, turn)
            return Photo(width, height, pixels) if turn in _SWAP_SIDES else Photo(height, width, pixels)
        decoded = _pillow_pixels(image)
        return Photo(decoded.shape[0], decoded.shape[1], lambda _reduce: decoded)


def size_of(stored: Stored, place: str) -> tuple[int, int]:
    """(width, height) before any turning, from the head of the file."""
    if isinstance(stored, np.ndarray):
        return stored.shape[1], stored.shape[0]
    with _telling(stored, place), _opened(stored, place) as image:
        return image.size


def fit_square(pixels: Pixels, size: int) -> Pixels:
    """Scale the shorter side to `size` (bicubic) and cut the centre: [size, size, 3]."""
    height, width, _ = pixels.shape
    if height == width == size:
        return pixels
    image = Image.fromarray(pixels)
    return np.array(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC))


@contextmanager
def _telling(stored: bytes, place: str) -> Iterator[None]:
    """Turn whatever damage leads to (Pillow's plugins raise nearly anything) into one error that names the image."""
    try:
        yield
    except UnreadableImageError:
        raise
    except Exception as error:
        raise UnreadableImageError(place, _reason(stored, error)) from error


def _reason(stored: bytes, error: Exception) -> str:
    if not stored:
        return EMPTY
    if isinstance(error, UnidentifiedImageError):  # its text names a buffer
        return "it is no image, or of a kind that is not known"
    return " ".join(str(error).split()).rstrip(".") or f"it is damaged ({type(error).__name__})"


@contextmanager
def _opened(stored: bytes, place: str) -> Iterator[Image.Image]:
    try:
        image = Image.open(io.BytesIO(stored))
    except Image.DecompressionBombError:  # Pillow does not tell the size
        raise UnreadableImageError(place, _too_large("")) from None
    with image:
        width, height = image.size
        if width * height > _limit.pixels:
            raise UnreadableImageError(place, _too_large(f" ({width}×{height})"))
        yield image


def _too_large(size: str) -> str:
    allowed = f"max_image_pixels={_limit.pixels} allows"
    return f"it has more pixels{size} than {allowed}; raise that setting if you trust the file"


def _jpeg_pixels(stored: bytes, place: str, width: int, height: int, turn: int, reduce: int) -> Pixels:
    """RGB bytes of a JPEG; when the fast decoder stumbles Pillow decides, and decodes it whole."""
    if turn != 1 and (height % reduce or width % reduce):
        reduce = 1  # the last reduced pixel is a part of one, and turned it would be the first: all others would shift
    shape = (-(-height // reduce), -(-width // reduce), 3)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(stored, "RGB", min_height=shape[0], min_width=shape[1])
        if pixels.shape == shape:
            return _upright(pixels, turn)
    except ValueError as error:
        if "premature end" in str(error).lower():  # Pillow would fill the rest with grey when the end is marked
            raise UnreadableImageError(place, "the file is cut short") from error
    with _telling(stored, place), _opened(stored, place) as image:
        return _pillow_pixels(image)


def _pillow_pixels(image: Image.Image) -> Pixels:
    """RGB bytes of an opened image of any kind, upright; of an animation the first frame."""
    image.load()
    turn = _orientation(image)  # after loading: Pillow turns TIFFs itself
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        grey = _eight_bits(np.asarray(image))
        return _upright(np.repeat(grey[:, :, None], 3, axis=2), turn)
    if image.has_transparency_data:  # what lies below transparent pixels is often rubbish: show white, as viewers do
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return _upright(np.array(image.convert("RGB")), turn)


def _eight_bits(values: NDArray[np.generic]) -> Pixels:
    """Grey values of 16 bits scaled to 8; of 32 bits or floats by the least usual range that holds them."""
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    x = np.nan_to_num(values.astype(np.float64))
    low, high = float(x.min()), float(x.max())
    ranges = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (255.0, 65535.0)
    top = next((top for top in ranges if low >= 0 and high <= top), None)
    if top is None:  # no usual range: from its darkest to its brightest value
        return np.rint((x - low) * (255 / max(high - low, 1e-30))).astype(np.uint8)
    return np.rint(x * (255 / top)).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 … 8; 1 (upright) when it says nothing or cannot be read."""
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # the pixels may be good all the same
        return 1
    return turn if turn in _TURNS else 1


_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}
_SWAP_SIDES = frozenset({5, 6, 7, 8})


def _upright(pixels: Pixels, turn: int) -> Pixels:
    return np.ascontiguousarray(_TURNS[turn](pixels))
