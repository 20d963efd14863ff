"""Images that a caller passes one by one (files, PIL images or arrays), as a source."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from carp.errors import DataError, UnreadableImageError
from carp.images.decoding.decode import Pixels, Stored, read_file
from carp.images.source import Source

ImageLike = str | Path | Image.Image | Pixels


class GivenImages(Source):
    """A list of images as a source. It has no fingerprint, so nothing is cached for it."""

    fingerprint = ""

    def __init__(self, images: Sequence[ImageLike], *, name: str = "images") -> None:
        if not images:
            raise DataError("there are no images: received an empty list. Give at least one image.")
        self._images, self.name = images, name

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> Stored:
        """Return the bytes of a file, or the pixels of an image."""
        image = self._images[index]
        if isinstance(image, str | Path):
            return read_file(Path(image))
        if isinstance(image, Image.Image):
            try:
                return np.array(image.convert("RGB"))  # it may not be decoded yet
            except (OSError, ValueError) as error:
                raise UnreadableImageError(self.place(index), " ".join(str(error).split())) from error
        return _checked(image)

    def place(self, index: int) -> str:
        """Return the path of a file; the number of any other image."""
        image = self._images[index]
        return str(image) if isinstance(image, str | Path) else f"number {index}"


def _checked(pixels: object) -> Pixels:
    if not isinstance(pixels, np.ndarray):
        raise DataError(
            f"an image must be a path, a PIL image or an array [H, W, 3] of bytes, received {type(pixels).__name__}."
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise DataError(
            f"an image array must be uint8 [H, W, 3], received {pixels.dtype} {list(pixels.shape)}: convert it."
        )
    return pixels
