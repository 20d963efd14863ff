"""Checks whether the size of the views suits the images, on a fixed sample."""

import numpy as np

from carp.config import SMALL_IMAGE, SizeSettings
from carp.errors import UnreadableImageError
from carp.images.decoding.decode import size_of
from carp.images.source import Source

_SAMPLED = 16
_TOO_SMALL, _TOO_LARGE = 2, 4  # ratios of sides that deserve advice


def advice(source: Source, config: SizeSettings, *, started: bool = False) -> str | None:
    """Return one line of advice if the images are much smaller or much larger than the views, else None.

    A run that is `started` from weights keeps its recipe.
    """
    sizes = sorted(_sizes(source), key=min)
    if not sizes:
        return None
    width, height = sizes[len(sizes) // 2]
    side, views = min(width, height), config.global_size
    about = "" if sizes[0] == sizes[-1] else "about "
    found = f"images are {about}{width}×{height} and global_size is {views}"
    if views >= _TOO_SMALL * side:
        fitting = max(8, side)
        if started:
            fitting = max(SMALL_IMAGE, -(-side // 32) * 32)  # what most encoders divide their input by
            return f"{found}: consider global_size={fitting}, which takes {(fitting / views) ** 2:.0%} of the time."
        if side > SMALL_IMAGE:
            return f"{found}: consider global_size={fitting}."
        return f"{found}: consider --recipe small-images global_size={fitting}."
    if views <= SMALL_IMAGE and side >= _TOO_LARGE * views:
        return f"{found}: most detail is lost; consider --recipe folder."
    return None


def _sizes(source: Source) -> list[tuple[int, int]]:
    """Return (width, height) of a few images; unreadable ones are skipped, because training reports them."""
    found = []
    for index in map(int, np.unique(np.linspace(0, len(source) - 1, _SAMPLED).astype(int))):
        try:
            found.append(size_of(source.fetch(index), source.place(index)))
        except UnreadableImageError:
            continue
    return found
