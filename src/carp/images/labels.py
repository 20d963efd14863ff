"""Classes from whatever labels the data has: words or numbers, one an image."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def number_classes(words: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A class index per word, and the names of the classes: numbers in their order, otherwise alphabetically."""
    names = sorted(set(words))
    if all(name.isascii() and name.isdecimal() for name in names):
        names.sort(key=lambda name: (len(digits := name.lstrip("0")), digits, name))  # `int` refuses 5,000 digits
    number = {name: i for i, name in enumerate(names)}
    return np.fromiter((number[word] for word in words), dtype=np.int64, count=len(words)), tuple(names)
