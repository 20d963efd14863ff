"""Limits on decoding one image: its pixels, the bytes of its file, its memory."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from PIL import Image

from carp.config import MAX_IMAGE_PIXELS
from carp.console.quantities import in_bytes
from carp.errors import UnreadableImageError

_BYTES_PER_PIXEL = 8  # of a file: no format stores more than four uncompressed channels of 16 bits
_MORE_BYTES = 64 << 20  # for everything except pixels: colour profiles, previews, more frames
_LARGE = 1 << 24  # pixels; for smaller images, asking for the free memory would take longer than decoding
_SHARE = 0.5  # of the available memory that one image may use, because other processes decode as well


@dataclass
class _State:
    pixels: int = MAX_IMAGE_PIXELS
    large: threading.Lock = field(default_factory=threading.Lock)  # held while a large image is decoded


_state = _State()
Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS  # Pillow's own limit must not be lower than ours


def _unlock() -> None:
    _state.large = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_unlock)


@contextmanager
def pixel_limit(count: int) -> Iterator[None]:
    """Within the context, refuse images with more pixels, in all threads of this process."""
    before = _state.pixels, Image.MAX_IMAGE_PIXELS
    _state.pixels, Image.MAX_IMAGE_PIXELS = count, max(count, MAX_IMAGE_PIXELS)
    try:
        yield
    finally:
        _state.pixels, Image.MAX_IMAGE_PIXELS = before


def pixels_allowed() -> int:
    """Return the current limit, to be passed to other processes."""
    return _state.pixels


def bytes_allowed() -> int:
    """Return the largest file size that is read, derived from the limit on pixels so that one setting controls both."""
    return _BYTES_PER_PIXEL * _state.pixels + _MORE_BYTES


def check_bytes(size: int, place: str) -> None:
    """Raise if an encoded image has more bytes than an image within the limit on pixels can need."""
    if size > bytes_allowed():
        raise UnreadableImageError(
            place,
            f"it has {in_bytes(size)}, more than an image of max_image_pixels={_state.pixels} needs; raise that "
            "setting if you trust the file",
        )


def check_pixels(width: int, height: int, place: str) -> None:
    """Raise if an image has more pixels than allowed, by the size in its header."""
    if width * height > _state.pixels:
        raise too_many_pixels(place, f" ({width}×{height})")


def too_many_pixels(place: str, size: str = "") -> UnreadableImageError:
    """Return the error for an image with too many pixels."""
    allowed = f"max_image_pixels={_state.pixels} allows"
    return UnreadableImageError(
        place, f"it has more pixels{size} than {allowed}; raise that setting if you trust the file"
    )


def out_of_memory(place: str) -> UnreadableImageError:
    """Return the error for an image whose decoding ran out of memory."""
    return UnreadableImageError(place, "decoding it needs more memory than is free")


@contextmanager
def room_for(pixels: int, bytes_per_pixel: float, place: str) -> Iterator[None]:
    """Within the context, decode a large image: alone, and only if it fits into memory."""
    if pixels < _LARGE:
        yield
        return
    import torch  # noqa: PLC0415 - takes seconds, and only large images need it

    from carp.compute.device import available_memory  # noqa: PLC0415

    with _state.large:
        need, free = int(pixels * bytes_per_pixel), available_memory(torch.device("cpu"))
        if need > _SHARE * free:
            raise UnreadableImageError(
                place,
                f"decoding it needs about {in_bytes(need)} of memory, more than half of the {in_bytes(free)} free",
            )
        yield
