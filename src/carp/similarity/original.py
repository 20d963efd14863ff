"""Which image of a group of near-duplicates to keep: the one that is most likely the original.

The criteria are applied in this order; if one does not decide, the next one does:

1. Resolution: images with clearly fewer pixels (less than 1 / 1.1 of the most) are copies. A border of one colour does
   not count, so a frame does not make a copy look larger.
2. Camera data: if some of the rest have it (EXIF maker, model or time of exposure), those without are copies; editors
   and messengers remove it.
3. File date: copies are made later. Files that are more than a minute newer than the oldest are copies.
4. Name: `a.jpg` comes before `a-edited.jpg` and `a (2).jpg`: a name that begins with the name of another is a copy.
5. Most bytes, then the first in the order of the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

_AS_MANY_PIXELS = 1.1
_SECONDS = 60.0


@dataclass(frozen=True)
class Evidence:
    """The properties of an image that the decision uses."""

    pixels: int
    """The number of pixels without a border of one colour."""
    has_camera_data: bool
    modified: float | None
    """When the file was written, in seconds; None if it is not a file."""
    name: str
    num_bytes: int


def original(images: list[Evidence]) -> int:
    """Return the number of the image to keep."""
    left = list(range(len(images)))
    most = max(image.pixels for image in images)
    left = _those(left, lambda i: images[i].pixels * _AS_MANY_PIXELS >= most)
    left = _those(left, lambda i: images[i].has_camera_data)
    dates = [images[i].modified for i in left]
    known = [date for date in dates if date is not None]
    if len(known) == len(dates):
        oldest = min(known)
        left = _those(left, lambda i: (images[i].modified or 0.0) <= oldest + _SECONDS)
    stems = {i: PurePath(images[i].name).stem for i in left}
    left = _those(left, lambda i: not any(_extends(stems[i], stems[j]) for j in stems))
    return min(left, key=lambda i: (-images[i].num_bytes, i))


def _those(left: list[int], condition: Callable[[int], bool]) -> list[int]:
    """Return the candidates for which the condition holds; all if it holds for none."""
    return [i for i in left if condition(i)] or left


def _extends(stem: str, other: str) -> bool:
    return len(stem) > len(other) and stem.startswith(other)
