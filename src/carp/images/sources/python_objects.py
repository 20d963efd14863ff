"""Images from Python: a map-style dataset, a list of images, pairs or paths, or an object that fetches images."""

import sys
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carp.errors import DataError, StorageError, UnreadableImageError
from carp.images.decoding.decode import Pixels, Stored, read_file
from carp.images.decoding.transient import retrying
from carp.images.labels import number_classes
from carp.images.source import MapStyle, Opening, Source, SourceLike, is_text, lazy

if TYPE_CHECKING:
    from torch import Tensor

_LABELS = ("targets", "labels", "_labels")  # names of the labels in torchvision's datasets
_SAMPLES = "_samples"  # or a list of pairs (file, label)
_OPTIONAL = (
    *("name", "fingerprint", "labels", "classes", "groups", "window", "notes", "skipped", "label_remedy"),
    *("short_name", "keep_index"),
)


class AdaptedSource(Source):
    """A user's own object with a length, `fetch` and `place`.

    Any other member of `Source` that the object has is used as well; the rest have the defaults.
    """

    kind = ""
    claim_order = 10
    label_remedy = "give it `labels` and `classes`"

    def __init__(self, wrapped: SourceLike) -> None:
        self._wrapped, self.name = wrapped, type(wrapped).__name__
        for member in _OPTIONAL:  # only here is a foreign object adapted; all other code relies on the contract
            if hasattr(wrapped, member):
                setattr(self, member, getattr(wrapped, member))

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim any object with `fetch` and `place`."""
        return hasattr(data, "fetch") and hasattr(data, "place")

    @classmethod
    def open(cls, data: SourceLike, how: Opening) -> "AdaptedSource":  # noqa: ARG003 - an object needs no options
        """Adapt the object."""
        return AdaptedSource(data)

    @lazy
    def fingerprint(self) -> str:
        """The object's own, or a hash of a few images."""
        return self.sample

    def __len__(self) -> int:
        return len(self._wrapped)

    def fetch(self, index: int) -> Stored:
        """Fetch the image from the object."""
        return self._wrapped.fetch(index)

    def place(self, index: int) -> str:
        """Return the place that the object reports."""
        return self._wrapped.place(index)


class MapStyleSource(Source):
    """A map-style dataset as a source.

    An item is an image, or a tuple or list that begins with the image and has the label second. An image is a PIL
    image, the path of a file, an array of bytes [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or a tensor [C, H, W] of
    bytes or of floats in [0, 1]. The same number must give the same image every time: CARP draws the views.

    The fingerprint covers the number of images and a few of them.
    """

    kind = ""
    claim_order = 90
    label_remedy = "return (image, label) as its items"

    def __init__(self, dataset: MapStyle, *, name: str | None = None) -> None:
        self._dataset, self.name = dataset, name or type(dataset).__name__
        if len(dataset) == 0:
            raise DataError(f"there are no images in {self.name}: its length is 0. Give a dataset with images.")

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim any object with a length and integer indexing."""
        indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        return indexable and not is_text(data) and not isinstance(data, dict | bytes)

    @classmethod
    def open(cls, data: Any, how: Opening) -> Source:  # noqa: ARG003 - an object needs no options
        """Use the object's items as images."""
        return MapStyleSource(data)

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, index: int) -> Stored:
        """Return the image of an item."""
        try:
            item = retrying(partial(self._dataset.__getitem__, index), self.place(index))
        except StorageError:
            raise
        except Exception as error:  # the dataset is the user's code: whatever it raises concerns this image
            raise UnreadableImageError(self.place(index), f"{type(error).__name__}: {' '.join(str(error).split())}"
                                       ) from error  # fmt: skip
        image = item[0] if isinstance(item, tuple | list) else item
        return self._stored(image, index)

    def place(self, index: int) -> str:
        """Return the name of the dataset and the number of the image."""
        return f"{self.name}[{index}]"

    @lazy
    def fingerprint(self) -> str:
        """A hash of the length and a few images."""
        return self.sample

    @lazy
    def labels(self) -> NDArray[np.int64] | None:
        """From the dataset's list of labels or else from every item; None without."""
        return self._labels_and_classes[0]

    @lazy
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the dataset has no names."""
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
            listed: Any = getattr(self._dataset, name, None)
            is_array = isinstance(listed, np.ndarray) or _is_tensor(listed)
            if (is_array or isinstance(listed, list | tuple)) and len(listed) == len(self):
                return _as_words(listed.tolist() if is_array else list(listed))
        pairs = getattr(self._dataset, _SAMPLES, None)
        if isinstance(pairs, list) and len(pairs) == len(self) and {_length(pair) for pair in pairs} == {2}:
            return _as_words([label for _, label in pairs])
        labels = list[Any]()
        for index in range(len(self)):
            try:
                item = retrying(partial(self._dataset.__getitem__, index), self.place(index))
            except StorageError:
                raise
            except Exception:  # an image that cannot be read, whatever the user's code raises
                labels.append(None)
                continue
            if not isinstance(item, tuple | list) or len(item) < 2 or _as_words([item[1]]) is None:
                return None
            labels.append(item[1])
        known = next((label for label in labels if label is not None), None)
        # An image that cannot be read is left out together with its label, so any label will do
        return None if known is None else _as_words([known if label is None else label for label in labels])

    def _stored(self, image: Any, index: int) -> Stored:
        if isinstance(image, bytes):
            return image
        if isinstance(image, str | Path):
            return read_file(Path(image))
        if isinstance(image, Image.Image):
            return np.array(image.convert("RGB"))
        if _is_tensor(image):
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
                    self.place(index), "its values are not between 0 and 1: give images that are not normalised"
                )
            pixels = np.rint(pixels * 255).astype(np.uint8)
        if pixels.dtype != np.uint8:
            raise UnreadableImageError(self.place(index), f"it has {pixels.dtype} values, not bytes or floats")
        channels = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels, 3, axis=-1)
        return np.ascontiguousarray(channels)


def _is_tensor(value: object) -> TypeGuard["Tensor"]:
    """Check without importing torch, which takes seconds: before it is imported, there are no tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _length(item: Any) -> int:
    return len(item) if isinstance(item, tuple) else 0


def _as_words(labels: list[Any]) -> list[str] | None:
    """Return labels as text; None if one of them is neither a number nor a word."""
    plain = [label.item() if (isinstance(label, np.generic) or _is_tensor(label)) and np.ndim(label) == 0 else label
             for label in labels]  # fmt: skip
    if not all(isinstance(label, int | str) and str(label) for label in plain):
        return None
    return [str(label) for label in plain]
