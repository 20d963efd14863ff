"""Read and decode every image of a source: counts, sizes, formats, broken images and duplicates.

Only `fetch` and `place` are used, so that it works for any source. Images are decoded completely: a file with an intact
header may still be truncated.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carp.compute.threads import available_cores
from carp.errors import UnreadableImageError
from carp.images.decoding.decode import EMPTY, Pixels, Stored, decode, format_of
from carp.images.inspect.identical import digest
from carp.images.loading.quarantine import Unreadable
from carp.images.source import Source

_AT_A_TIME = 1024
_PLACES = 3  # places listed per group of duplicates
_PIXELS = "pixels"  # the format of images that are not encoded


@dataclass(frozen=True)
class Range:
    """The smallest, the median and the largest value."""

    min: int
    median: int
    max: int


@dataclass(frozen=True)
class Duplicates:
    """Images with the same bytes."""

    count: int
    places: list[str]  # the first few


@dataclass(frozen=True)
class Scan:
    """The findings. Widths, heights and formats are those of readable images."""

    images: int
    broken: list[Unreadable]
    empty: int  # broken images that are files without bytes
    formats: dict[str, int]
    width: Range | None
    height: Range | None
    bytes_each: Range
    bytes_in_all: int
    classes: dict[str, int]  # number of images per class; empty without labels
    duplicates: list[Duplicates]  # largest group first
    small: int  # images whose shorter side is at most half that of a view


class _Seen(NamedTuple):
    bad: Unreadable | None
    digest: bytes
    num_bytes: int
    format: str = ""
    width: int = 0
    height: int = 0


def scan(
    source: Source,
    *,
    view_size: int,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    look: Callable[[int, Pixels], None] = lambda _index, _pixels: None,
) -> Scan:
    """Read and decode every image, with one thread per core; `look` is called with each, in any of these threads."""
    digests = np.zeros(len(source), dtype="V16")
    sizes_N3 = np.zeros((len(source), 3), dtype=np.int64)  # bytes, width, height
    formats, broken = Counter[str](), list[Unreadable]()
    for i, seen in enumerate(_read_all(source, look)):
        digests[i], sizes_N3[i] = seen.digest, (seen.num_bytes, seen.width, seen.height)
        if seen.bad:
            broken.append(seen.bad)
        else:
            formats[seen.format] += 1
        progress(i + 1, len(source))
    good = np.ones(len(source), dtype=np.bool_)
    good[[bad.index for bad in broken]] = False
    return Scan(
        images=len(source),
        broken=broken,
        empty=sum(bad.reason == EMPTY for bad in broken),
        formats=dict(formats.most_common()),
        width=_range(sizes_N3[good, 1]),
        height=_range(sizes_N3[good, 2]),
        bytes_each=_range(sizes_N3[:, 0]) or Range(0, 0, 0),
        bytes_in_all=int(sizes_N3[:, 0].sum()),
        classes=_classes(source),
        duplicates=_duplicates(source, digests, good),
        small=int((2 * sizes_N3[good, 1:].min(axis=1, initial=2**31) <= view_size).sum()),
    )


def _read_all(source: Source, look: Callable[[int, Pixels], None]) -> Iterator[_Seen]:
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(source), _AT_A_TIME):  # a million queued tasks would fill the memory
            rows = range(start, min(start + _AT_A_TIME, len(source)))
            yield from pool.map(lambda i: _read_one(source, i, look), rows)


def _read_one(source: Source, index: int, look: Callable[[int, Pixels], None]) -> _Seen:
    stored: Stored = b""
    try:
        stored = source.fetch(index)
        pixels = decode(stored, source.place(index))
    except UnreadableImageError as error:
        return _Seen(Unreadable(index, error.place, error.reason), bytes(16), len(stored))
    look(index, pixels)
    height, width, _ = pixels.shape
    num_bytes = len(stored) if isinstance(stored, bytes) else stored.nbytes
    return _Seen(None, digest(stored), num_bytes, _format(stored, source.place(index)), width, height)


def _format(stored: Stored, place: str) -> str:
    if not isinstance(stored, bytes):
        return _PIXELS
    return format_of(stored, place)


def _range(values: NDArray[np.int64]) -> Range | None:
    if not len(values):
        return None
    return Range(int(values.min()), int(np.median(values)), int(values.max()))


def _classes(source: Source) -> dict[str, int]:
    if source.labels is None:
        return {}
    if source.labels.ndim > 1:  # an image with several labels counts for each
        counts = (source.labels > 0).sum(axis=0)
    else:
        counts = np.bincount(source.labels, minlength=len(source.classes))
    return {name: int(count) for name, count in zip(source.classes, counts, strict=True)}


def _duplicates(source: Source, digests: NDArray[np.void], good: NDArray[np.bool_]) -> list[Duplicates]:
    """Return groups of readable images with the same digest."""
    readable = np.flatnonzero(good)
    _, group, counts = np.unique(digests[readable].view("S16"), return_inverse=True, return_counts=True)
    order = readable[np.argsort(group, kind="stable")]  # group by group, each in the order of the source
    starts = np.cumsum(counts) - counts
    several = sorted(np.flatnonzero(counts > 1), key=lambda g: (-counts[g], order[starts[g]]))
    return [
        Duplicates(int(counts[g]), [source.place(int(i)) for i in order[starts[g] : starts[g] + counts[g]][:_PLACES]])
        for g in several
    ]
