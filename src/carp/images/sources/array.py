"""Images held in memory as one array."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.decoding.decode import Pixels, Stored
from carp.images.source import Opening, Source


class ArraySource(Source):
    """Images held in memory, [N, H, W, 3] bytes.

    Attributes:
        images: The array.
        unreadable: Why some images have no pixels, by index: `reason` and `place`. Only images that were read from
            another source (`images/loading/in_memory.py`) can be unreadable.
    """

    kind = ""
    claim_order = 10
    label_remedy = "give a dataset whose items are (image, label)"
    unreadable: Mapping[int, Any] = MappingProxyType({})

    def __init__(
        self,
        images: Pixels,
        labels: NDArray[np.int64] | None = None,
        classes: tuple[str, ...] = (),
        *,
        name: str = "array",
        fingerprint: str | None = None,
    ) -> None:
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise DataError(
                f"an image array must be uint8 [N, H, W, 3], received {images.dtype} {list(images.shape)}: convert it."
            )
        if labels is not None and len(labels) != len(images):
            raise DataError(f"there are {len(images)} images but {len(labels)} labels: give one label per image.")
        self.images, self.labels, self.classes, self.name = images, labels, classes, name
        self.fingerprint = fingerprint or hashlib.sha256(images.tobytes()).hexdigest()

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim any array."""
        return isinstance(data, np.ndarray)

    @classmethod
    def open(cls, data: Any, how: Opening) -> "ArraySource":  # noqa: ARG003 - an array needs no options
        """Open an image array."""
        return ArraySource(data)

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, index: int) -> Stored:
        """Return RGB bytes [H, W, 3]."""
        pixels: Pixels = self.images[index]
        return pixels

    def place(self, index: int) -> str:
        """Return the name of the array and the number of the image."""
        return f"{self.name}[{index}]"
