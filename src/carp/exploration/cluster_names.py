"""Names for clusters: from labels if there are any, otherwise from words that are frequent in the names of their files.

Shapes: M images.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[^\W\d_]{3,}")
_SHARE = 0.4  # of a cluster that a name stands for
_LIFT = 2.0  # how much more frequent a word must be in the cluster than in all images


def cluster_names(
    own: NDArray[np.int64], places: Sequence[str], labels: NDArray[np.int64] | None, classes: Sequence[str]
) -> list[str]:
    """A name for every cluster; empty where nothing suggests one. Clusters may share a name.

    Args:
        own: The cluster of every image, [M].
        places: The place of every image.
        labels: The class of every image, [M]; -1 is none.
        classes: Names of the classes.
    """
    words = _of_labels(labels, classes) if labels is not None else [_of_file(place) for place in places]
    total = Counter(word for each in words for word in each)
    return [
        _name([words[row] for row in np.flatnonzero(own == cluster).tolist()], total, len(words))
        for cluster in range(int(own.max(initial=-1)) + 1)
    ]


def _of_labels(labels: NDArray[np.int64], classes: Sequence[str]) -> list[set[str]]:
    return [{classes[label]} if 0 <= label < len(classes) else set() for label in labels.tolist()]


def _of_file(place: str) -> set[str]:
    """The words of a file's name and of its folder's, in lower case."""
    path = PurePath(place)
    return {word.lower() for part in (path.parent.name, path.stem) for word in _WORD.findall(part)}


def _name(words: list[set[str]], total: Counter[str], images: int) -> str:
    """The most frequent word that most images of a cluster share and that others share less."""
    counts = Counter(word for each in words for word in each)
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        share = count / len(words)
        if share < _SHARE:
            return ""
        if share >= _LIFT * total[word] / images or total[word] == count:
            return word
    return ""
