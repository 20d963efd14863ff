"""Anything from Python with a length and items: a `torch.utils.data.Dataset`, a list of images, of pairs, of paths."""

import hashlib
from collections.abc import Sized
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from carp.errors import DataError, StorageError, UnreadableImageError
from carp.images.decoding.decode import Pixels, Stored, read_file
from carp.images.decoding.transient import retrying
from carp.images.labels import number_classes

_LOOKED_AT = 16
_LABELS = ("targets", "labels", "_labels")  # what torchvision's data sets call them
_SAMPLES = "_samples"  # or a list of pairs (file, label)


class MapStyle(Sized, Protocol):
    """What is asked of a data set: a length, and items by number."""

    def __getitem__(self, index: int, /) -> Any: ...


class DatasetSource:
    """A map-style data set as a source.

    An item is an image, or a tuple or list that begins with the image and has the label second. An image is a PIL
    image, the path of a file, an array of bytes [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or a tensor [C, H, W] of
    bytes or of floats in [0, 1]. The same number must give the same image every time: views are drawn by CARP.

    The fingerprint covers the number of images and a few of them.
    """

    def __init__(self, dataset: MapStyle, *, name: str | None = None) -> None:
        self._dataset, self.name = dataset, name or type(dataset).__name__
        if len(dataset) == 0:
            raise DataError(f"there are no images in {self.name}.")

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, index: int) -> Stored:
        """The image of one item."""
        try:
            item = retrying(partial(self._dataset.__getitem__, index), self.place(index))
        except StorageError:
            raise
        except Exception as error:  # whatever the code of the data set raises, it is this image that is not to be had
            raise UnreadableImageError(self.place(index), f"{type(error).__name__}: {' '.join(str(error).split())}"
                                       ) from error  # fmt: skip
        image = item[0] if isinstance(item, tuple | list) else item
        return self._stored(image, index)

    def place(self, index: int) -> str:
        """The number of the image."""
        return f"{self.name}[{index}]"

    @cached_property
    def fingerprint(self) -> str:
        """From the length and a few images."""
        digest = hashlib.sha256(f"{len(self)}".encode())
        for index in np.unique(np.linspace(0, len(self) - 1, _LOOKED_AT).astype(int)).tolist():
            try:
                stored = self.fetch(index)
            except UnreadableImageError:
                digest.update(b"unreadable")
                continue
            digest.update(stored if isinstance(stored, bytes) else f"{stored.shape}".encode() + stored.tobytes())
        return digest.hexdigest()

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """A class index per image, from the data set's list of labels or else from every item; None without."""
        return self._labels_and_classes[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the data set has no names."""
        return self._labels_and_classes[1]

    @cached_property
    def _labels_and_classes(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
        words = self._words()
        if words is None:
            return None, ()
        names = getattr(self._dataset, "classes", None)
        if isinstance(names, list | tuple) and all(word.isdecimal() and int(word) < len(names) for word in words):
            return np.array([int(word) for word in words], dtype=np.int64), tuple(str(name) for name in names)
        return number_classes(words)

    def _words(self) -> list[str] | None:
        for name in _LABELS:
            listed = getattr(self._dataset, name, None)
            if isinstance(listed, list | tuple | np.ndarray | Tensor) and len(listed) == len(self):
                return _as_words(listed.tolist() if isinstance(listed, np.ndarray | Tensor) else list(listed))
        pairs = getattr(self._dataset, _SAMPLES, None)
        if isinstance(pairs, list) and len(pairs) == len(self) and {_length(pair) for pair in pairs} == {2}:
            return _as_words([label for _, label in pairs])
        labels = list[Any]()
        for index in range(len(self)):
            try:
                item = retrying(partial(self._dataset.__getitem__, index), self.place(index))
            except StorageError:
                raise
            except Exception:  # an image that cannot be read, whatever the code of the data set raises
                labels.append(None)
                continue
            if not isinstance(item, tuple | list) or len(item) < 2 or _as_words([item[1]]) is None:
                return None
            labels.append(item[1])
        known = next((label for label in labels if label is not None), None)
        # Images that cannot be read are left out with their labels: any one will do
        return None if known is None else _as_words([known if label is None else label for label in labels])

    def _stored(self, image: Any, index: int) -> Stored:
        if isinstance(image, bytes):
            return image
        if isinstance(image, str | Path):
            return read_file(Path(image))
        if isinstance(image, Image.Image):
            return np.array(image.convert("RGB"))
        if isinstance(image, Tensor):
            image = image.detach().cpu().numpy()
            image = np.moveaxis(image, 0, -1) if image.ndim == 3 else image
        if not isinstance(image, np.ndarray):
            raise UnreadableImageError(
                self.place(index), f"it is a {type(image).__name__}, not a PIL image, an array, a tensor or a path"
            )
        return self._rgb(image, index)

    def _rgb(self, image: NDArray[Any], index: int) -> Pixels:
        pixels = image[..., None] if image.ndim == 2 else image
        if pixels.ndim != 3 or pixels.shape[-1] not in {1, 3, 4} or 0 in pixels.shape:
            raise UnreadableImageError(
                self.place(index), f"its shape is {list(image.shape)}; arrays are [H, W, 3] and tensors [3, H, W]"
            )
        if np.issubdtype(pixels.dtype, np.floating):
            if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN too
                raise UnreadableImageError(
                    self.place(index), "its values are not within 0 and 1: give images that are not normalised"
                )
            pixels = np.rint(pixels * 255).astype(np.uint8)
        if pixels.dtype != np.uint8:
            raise UnreadableImageError(self.place(index), f"it has {pixels.dtype} values, not bytes or floats")
        channels = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels, 3, axis=-1)
        return np.ascontiguousarray(channels)


def _length(item: Any) -> int:
    return len(item) if isinstance(item, tuple) else 0


def _as_words(labels: list[Any]) -> list[str] | None:
    """Labels as text; None when one of them is neither a number nor a word."""
    plain = [label.item() if isinstance(label, Tensor | np.generic) and np.ndim(label) == 0 else label
             for label in labels]  # fmt: skip
    if not all(isinstance(label, int | str) and str(label) for label in plain):
        return None
    return [str(label) for label in plain]
