"""What decoding one image may cost: pixels, bytes of the file, memory."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from PIL import Image

from carp.compute.device import available_memory
from carp.config import MAX_IMAGE_PIXELS
from carp.console.quantities import in_bytes
from carp.errors import UnreadableImageError

_BYTES_PER_PIXEL = 8  # of a file: no format stores more than 16 bits of four channels, uncompressed
_MORE_BYTES = 64 << 20  # for what is not pixels: colour profiles, previews, further frames
_LARGE = 1 << 24  # pixels; below it the memory is not asked for, as that would take longer than decoding an icon
_SHARE = 0.5  # of the available memory that one image may take: other processes decode, too


@dataclass
class _State:
    pixels: int = MAX_IMAGE_PIXELS
    large: threading.Lock = field(default_factory=threading.Lock)  # large images are decoded one after the other


_state = _State()
Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS  # Pillow's own limit must not be in the way of ours


def _unlock() -> None:
    _state.large = threading.Lock()  # a thread that the child does not have may have held it


os.register_at_fork(after_in_child=_unlock)


@contextmanager
def pixel_limit(count: int) -> Iterator[None]:
    """Refuse images of more pixels for a while, in all threads of this process."""
    before = _state.pixels, Image.MAX_IMAGE_PIXELS
    _state.pixels, Image.MAX_IMAGE_PIXELS = count, max(count, MAX_IMAGE_PIXELS)
    try:
        yield
    finally:
        _state.pixels, Image.MAX_IMAGE_PIXELS = before


def pixels_allowed() -> int:
    """The limit that holds now, for other processes to keep to."""
    return _state.pixels


def bytes_allowed() -> int:
    """The largest image file that is read; it follows from the pixels, so that there is one setting for both."""
    return _BYTES_PER_PIXEL * _state.pixels + _MORE_BYTES


def check_bytes(size: int, place: str) -> None:
    """Raise when an encoded image has more bytes than any image within the limit of pixels needs."""
    if size > bytes_allowed():
        raise UnreadableImageError(
            place,
            f"it has {in_bytes(size)}, more than an image of max_image_pixels={_state.pixels} needs; raise that "
            "setting if you trust the file",
        )


def check_pixels(width: int, height: int, place: str) -> None:
    """Raise when an image has more pixels than allowed, by the size in its head."""
    if width * height > _state.pixels:
        raise too_many_pixels(place, f" ({width}×{height})")


def too_many_pixels(place: str, size: str = "") -> UnreadableImageError:
    """The error for an image that is too large."""
    allowed = f"max_image_pixels={_state.pixels} allows"
    return UnreadableImageError(
        place, f"it has more pixels{size} than {allowed}; raise that setting if you trust the file"
    )


def out_of_memory(place: str) -> UnreadableImageError:
    """The error for an image that was refused memory."""
    return UnreadableImageError(place, "decoding it needs more memory than is free")


@contextmanager
def room_for(pixels: int, bytes_per_pixel: float, place: str) -> Iterator[None]:
    """Decode a large image only if it fits into memory, and no other one at the same time."""
    if pixels < _LARGE:
        yield
        return
    with _state.large:
        need, free = int(pixels * bytes_per_pixel), available_memory(torch.device("cpu"))
        if need > _SHARE * free:
            raise UnreadableImageError(
                place,
                f"decoding it needs about {in_bytes(need)} of memory, more than half of the {in_bytes(free)} free",
            )
        yield
