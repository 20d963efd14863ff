"""From an image that Pillow opened to upright RGB bytes, with little additional memory.

Colours are converted one band of rows at a time: converting a whole photograph at once needs four copies of it.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

Pixels = NDArray[np.uint8]
_BAND = 1 << 20  # pixels that are converted at a time
BYTES_PER_PIXEL = 7  # at the peak: 4 in Pillow and 3 here
_FLOAT_RANGES, _INT_RANGES = (1.0, 255.0, 65535.0), (255.0, 65535.0)


def pillow_pixels(image: Image.Image) -> Pixels:
    """Return upright RGB bytes [H, W, 3] of an opened image in any mode; the first frame of an animation."""
    image.load()
    turn = orientation(image)  # after loading: Pillow turns TIFFs itself
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        scale = _grey_scale(image)
        for rows, band in _bands(image):
            pixels[rows] = scale(np.asarray(band))[:, :, None]
    elif image.has_transparency_data:  # transparent pixels often have arbitrary colours: show white, as viewers do
        for rows, band in _bands(image):
            white = Image.new("RGBA", band.size, "white")
            pixels[rows] = np.asarray(Image.alpha_composite(white, band.convert("RGBA")).convert("RGB"))
    else:
        for rows, band in _bands(image):
            pixels[rows] = np.asarray(band.convert("RGB"))
    return upright(pixels, turn)


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    height = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, height):
        bottom = min(top + height, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _grey_scale(image: Image.Image) -> Callable[[NDArray[np.generic]], Pixels]:
    """Return the scale of grey values: 16 bits are divided by 257; 32 bits and floats use the smallest common range."""
    dtype = np.asarray(image.crop((0, 0, 1, 1))).dtype
    if dtype.kind == "u" and dtype.itemsize == 2:
        return lambda values: ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    extremes = [(x.min(), x.max()) for _, band in _bands(image) for x in [_finite(np.asarray(band))]]
    low, high = float(min(x for x, _ in extremes)), float(max(x for _, x in extremes))
    ranges = _FLOAT_RANGES if dtype.kind == "f" else _INT_RANGES
    top = next((top for top in ranges if low >= 0 and high <= top), None)
    if top is None:  # outside all ranges: scale from the darkest to the brightest value
        span = max(high - low, 1e-30)
        return lambda values: np.rint((_finite(values) - low) * (255 / span)).astype(np.uint8)
    return lambda values: np.rint(_finite(values) * (255 / top)).astype(np.uint8)


def _finite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Convert to float64, so that no difference of two float32 overflows; infinities become the largest float32."""
    most = float(np.finfo(np.float32).max)
    return np.nan_to_num(values.astype(np.float64), posinf=most, neginf=-most)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 … 8; 1 (upright) if there is none or it cannot be read."""
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # the pixels may still be good
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
SWAP_SIDES = frozenset({5, 6, 7, 8})


def upright(pixels: Pixels, turn: int) -> Pixels:
    """Turn an image by its EXIF orientation."""
    return np.ascontiguousarray(_TURNS[turn](pixels))
