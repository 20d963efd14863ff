"""Small pictures of images, made when a browser asks for them; the newest ones stay in memory, up to a limit."""

import io
import threading
from collections import OrderedDict

from carp.errors import CarpError
from carp.images.decoding.decode import open_photo
from carp.report.pages.thumbnails import thumbnail
from carp.web.collection import ImageCollection

SIDES = (64, 160, 480)  # pixels of the longer side that a browser may ask for
_QUALITY = 85
_BYTES = 64 * 2**20
_REDUCED = (8, 4, 2, 1)


class PictureCache:
    """Draws images as JPEG."""

    def __init__(self, images: ImageCollection, limit: int = _BYTES) -> None:
        self._images, self._limit, self._size = images, limit, 0
        self._kept: OrderedDict[tuple[int, int], bytes | None] = OrderedDict()
        self._lock = threading.Lock()

    def picture(self, row: int, side: int) -> bytes | None:
        """A picture with at most this side; small images keep their size. None if the image cannot be read."""
        key = row, side
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._draw(row, side)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._size += len(made or b"")
            while self._size > self._limit and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1] or b"")
        return made

    def _draw(self, row: int, side: int) -> bytes | None:
        place = self._images.place(row)
        try:
            photo = open_photo(self._images.fetch(row), place)
            shorter = min(photo.height, photo.width)
            pixels = photo.pixels(next(by for by in _REDUCED if by == 1 or shorter >= by * side))
        except CarpError:  # it could be read when its features were extracted
            return None
        file = io.BytesIO()
        thumbnail(pixels, side, enlarge=False).save(file, "JPEG", quality=_QUALITY)
        return file.getvalue()
