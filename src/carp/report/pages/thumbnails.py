"""Small pictures for sheets and pages, with the text below them."""

from dataclasses import dataclass

from PIL import Image

from carp.errors import UnreadableImageError
from carp.features.stored_images import StoredImages
from carp.images.decoding.decode import Pixels, decode

Colour = tuple[int, int, int]

SIDE = 160
GREEN = (26, 127, 75)


@dataclass(frozen=True)
class Picture:
    """A thumbnail and the text below it."""

    image: Image.Image | None
    """None if the file can no longer be read."""
    head: str = ""
    lines: tuple[str, ...] = ()
    mark: Colour | None = None
    """The colour of the frame and of the first line: for the query, the image to keep, or a kind of view."""
    file: str = ""
    """The file that a click on the thumbnail opens, if it exists."""


def thumbnail(pixels: Pixels, side: int = SIDE, *, enlarge: bool = True) -> Image.Image:
    """Resize an image to fit into a square; small images are enlarged, or stay as they are for a page that does it."""
    image = Image.fromarray(pixels)
    scale = side / max(image.size)
    if scale >= 1 and not enlarge:
        return image
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)


def thumbnail_of(
    images: StoredImages, row: int, place: str, side: int = SIDE, *, enlarge: bool = True
) -> Image.Image | None:
    """Return the thumbnail of an image of a feature store, or None if it can no longer be read."""
    try:
        return thumbnail(decode(images.fetch(row, place), place), side, enlarge=enlarge)
    except UnreadableImageError:
        return None
