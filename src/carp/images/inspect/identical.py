"""Images with identical bytes."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from carp.compute.threads import available_cores
from carp.errors import UnreadableImageError
from carp.images.decoding.decode import Stored
from carp.images.source import Source

_AT_A_TIME = 1024


def digest(stored: Stored) -> bytes:
    """Return a digest of 16 bytes of an encoded file, or of pixels and their shape."""
    content = stored if isinstance(stored, bytes) else np.ascontiguousarray(stored).tobytes()
    shape = b"" if isinstance(stored, bytes) else str(stored.shape).encode()
    return hashlib.blake2b(content, digest_size=16, key=shape).digest()


def first_identical(
    source: Source, images: NDArray[np.int64], progress: Callable[[int, int], None] = lambda _done, _all: None
) -> NDArray[np.int64]:
    """Return, for every image, the position in `images` of the first one with the same bytes, possibly itself."""
    firsts = np.arange(len(images))
    seen: dict[bytes, int] = {}

    def digest_of(row: int) -> bytes | None:
        try:
            return digest(source.fetch(int(images[row])))
        except UnreadableImageError:  # it could be read when its features were extracted
            return None

    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(images), _AT_A_TIME):  # a million queued tasks would fill the memory
            rows = range(start, min(start + _AT_A_TIME, len(images)))
            for row, found in zip(rows, pool.map(digest_of, rows), strict=True):
                if found is not None:
                    firsts[row] = seen.setdefault(found, row)
            progress(rows.stop, len(images))
    return firsts
