"""Labels: class numbers from words, and the errors for labels that are missing or have the wrong form."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError


class Named(Protocol):
    """Images or features: anything with a name and possibly labels."""

    @property
    def name(self) -> str:
        """The name in messages and results."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """As `Source.labels`."""

    @property
    def label_remedy(self) -> str:
        """How to get labels, as the end of an error message."""


def number_classes(words: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return one class index per word, and the class names: numbers in their order, otherwise alphabetically."""
    names = sorted(set(words))
    if all(name.isascii() and name.isdecimal() for name in names):
        names.sort(key=lambda name: (len(digits := name.lstrip("0")), digits, name))  # `int` rejects 5,000 digits
    number = {name: i for i, name in enumerate(names)}
    return np.fromiter((number[word] for word in words), dtype=np.int64, count=len(words)), tuple(names)


def unlabelled(source: Named) -> DataError:
    """Return the error for images without labels where they are needed."""
    return DataError(f"{source.name} has no labels: {source.label_remedy}.")


def single_labels(source: Named, what: str = "k-NN") -> NDArray[np.int64]:
    """Return one class index per image, [N]; raise an error that names `what` if an image has no label or several."""
    if source.labels is None:
        raise unlabelled(source)
    if source.labels.ndim > 1:
        raise DataError(
            f"{what} needs one label per image; {source.name} has several: give images with one label each."
        )
    return source.labels
