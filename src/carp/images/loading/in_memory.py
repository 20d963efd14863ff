"""Small images, decoded once to the size of the views and held in memory."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from carp.compute.threads import available_cores
from carp.config import SMALL_IMAGE, SizeSettings
from carp.errors import UnreadableImageError
from carp.images.decoding.decode import Pixels, Stored
from carp.images.loading.quarantine import Misses, Unreadable, nothing_to_read
from carp.images.source import Source, lazy, read
from carp.images.sources.array import ArraySource
from carp.images.views.centre_crop import resize_and_crop

Progress = Callable[[int, int], None]  # called with (done, all)
_AT_A_TIME = 1024


class HeldSource(ArraySource):
    """The images of another source, held in memory. Unreadable ones are black and listed in `unreadable`."""

    def __init__(self, images: Pixels, source: Source, unreadable: Sequence[Unreadable]) -> None:
        super().__init__(images, source.labels, source.classes, name=source.name, fingerprint=source.fingerprint)
        self._source, self.unreadable = source, {bad.index: bad for bad in unreadable}
        self.label_remedy = source.label_remedy

    @lazy
    def sample(self) -> str:
        """That of the original images."""
        return self._source.sample

    def fetch(self, index: int) -> Stored:
        """Return RGB bytes [H, W, 3]."""
        if bad := self.unreadable.get(index):
            raise UnreadableImageError(bad.place, bad.reason)
        return super().fetch(index)

    def place(self, index: int) -> str:
        """Return its place in the original source."""
        return self._source.place(index)


def is_readable(source: ArraySource) -> NDArray[np.bool_]:
    """Return which images of an array have pixels, [N]."""
    readable = np.ones(len(source), dtype=np.bool_)
    readable[list(source.unreadable)] = False
    return readable


def is_held(config: SizeSettings) -> bool:
    """Return whether a run reads its images into memory first, or leaves them where they are (photographs)."""
    return config.global_size <= SMALL_IMAGE


def hold_in_memory(
    source: Source,
    size: int,
    *,
    progress: Progress = lambda _done, _all: None,
    missed: Callable[[Misses], None] = lambda _: None,
) -> ArraySource:
    """Decode all images of a source to size × size, with the evaluation transform.

    `missed` is called with each image that cannot be read.
    """
    if isinstance(source, ArraySource) and source.images.shape[1:3] == (size, size):
        return source
    images, unreadable = np.zeros((len(source), size, size, 3), dtype=np.uint8), list[Unreadable]()
    for i, made in enumerate(_decode(source, size)):
        if isinstance(made, UnreadableImageError):
            unreadable.append(Unreadable(i, made.place, made.reason))
            missed(Misses(unreadable[-1:]))
        else:
            images[i] = made
        progress(i + 1, len(source))
    if len(unreadable) == len(source):
        raise nothing_to_read(source.name, unreadable)
    return HeldSource(images, source, unreadable)


def _decode(source: Source, size: int) -> Iterator[Pixels | UnreadableImageError]:
    def square(index: int) -> Pixels | UnreadableImageError:
        try:
            return resize_and_crop(read(source, index), size, size)
        except UnreadableImageError as error:
            return error

    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(source), _AT_A_TIME):  # so that decoded images do not pile up
            yield from pool.map(square, range(start, min(start + _AT_A_TIME, len(source))))
