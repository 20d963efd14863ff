"""Checks the features and labels that a protocol receives, and iterates over them.

Features may be memory-mapped and larger than memory, so they are read only a few megabytes at a time.

Shapes: N images, F features, C classes.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.errors import DataError

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Progress = Callable[[int, int], None]  # called with (done, all)

_BYTES_AT_A_TIME = 2**24
_SMALLEST_NORM = 1e-12  # so that an image whose features are all zero has similarity 0 instead of NaN


def silent(_done: int, _all: int) -> None:
    """Ignore progress."""


def check_pair(train: Features, test: Features) -> tuple[Features, Features]:
    """Return the norms [N] of training and test features; raise an error if they cannot be used."""
    for name, features in (("training", train), ("test", test)):
        _check_shape(name, features)
    if train.shape[1] != test.shape[1]:
        raise DataError(
            f"training and test features must have the same length, received {train.shape[1]} and {test.shape[1]}. "
            "Take both from the same encoder."
        )
    return norms(train, "training"), norms(test, "test")


def check_features(**named: Features) -> None:
    """Raise an error if features [N, F] have shapes that do not fit; messages use the names of the arguments."""
    for name, features in named.items():
        _check_shape(name, features)
    lengths = {name: features.shape[1] for name, features in named.items()}
    if len(set(lengths.values())) > 1:
        received = ", ".join(f"{length} ({name})" for name, length in lengths.items())
        raise DataError(
            f"all features must have the same length, received {received}. Take them from the same encoder."
        )


def check_classes(
    train: Features, train_labels: Labels | None, test: Features, test_labels: Labels | None
) -> tuple[Labels, Labels, int]:
    """Return the labels [N] of both parts and the number of classes; raise an error if they cannot be used.

    The test part may lack classes of the training part, but not the other way round: no protocol can predict a class
    without training images.
    """
    known, asked = (
        _single(name, features, labels)
        for name, features, labels in (("training", train, train_labels), ("test", test, test_labels))
    )
    classes = np.unique(known)
    if len(classes) < 2:
        raise DataError(f"the training labels have only one class ({classes[0]}): give images of at least two classes.")
    unknown = np.setdiff1d(asked, classes)
    if len(unknown):
        raise DataError(
            f"{len(unknown)} of the test classes are not in the training labels; the first is {unknown[0]}. "
            "Give test images of the training classes only."
        )
    return known, asked, int(classes[-1]) + 1


def check_multi_label(
    train: Features, train_labels: Labels | None, test: Features, test_labels: Labels | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which images show which class, [N, C] for both parts: those with a label above 0."""
    known, asked = (
        _multiple(name, features, labels)
        for name, features, labels in (("training", train, train_labels), ("test", test, test_labels))
    )
    if known.shape[1] != asked.shape[1]:
        raise DataError(
            f"training and test labels must have a column for every class, received {known.shape[1]} and "
            f"{asked.shape[1]} columns."
        )
    for name, shown in (("training", known), ("test", asked)):
        missing = np.flatnonzero(~shown.any(axis=0) | shown.all(axis=0))
        if len(missing):
            what = "every" if shown[:, missing[0]].any() else "no"
            raise DataError(
                f"{what} {name} image shows class {missing[0]}; each class needs images with and without it."
            )
    return known, asked


def norms(features: Features, name: str = "some") -> Features:
    """Return the length of every vector of [N, F] as float32 [N]; raise an error if one is not finite."""
    found = np.empty(len(features), dtype=np.float32)
    for start, stop in spans(features):
        found[start:stop] = torch.linalg.vector_norm(tensor(features[start:stop]), dim=1).numpy()
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        raise DataError(
            f"the {name} features of {len(wrong)} images are not finite numbers; the first is image {wrong[0]}. "
            "Extract them again, in float32."
        )
    return found.clip(min=_SMALLEST_NORM)


def normalised(features: Features, lengths: Features) -> Features:
    """Return a copy whose vectors have length 1."""
    copy = np.empty(features.shape, dtype=np.float32)
    for start, stop in spans(features):
        np.divide(features[start:stop], lengths[start:stop, None], out=copy[start:stop])
    return copy


def spans(features: Features) -> Iterator[tuple[int, int]]:
    """Yield start and stop of consecutive rows of a few megabytes."""
    rows = max(1, _BYTES_AT_A_TIME // (4 * max(1, features.shape[1])))
    for start in range(0, len(features), rows):
        yield start, min(start + rows, len(features))


def tensor(array: NDArray[np.generic]) -> Tensor:
    """Return the array as a tensor on the same memory, for reading only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # and nothing writes to it
        return torch.from_numpy(np.ascontiguousarray(array))


def _check_shape(name: str, features: Features) -> None:
    if features.ndim != 2 or features.dtype != np.float32:
        raise DataError(
            f"{name} features must be a float32 array of images × features, received {features.dtype} of shape "
            f"{features.shape}."
        )
    if not features.size:
        raise DataError(f"there are no {name} features: received an array of shape {features.shape}.")


def _labels(name: str, features: Features, labels: Labels | None) -> Labels:
    if labels is None:
        raise DataError(f"the {name} images have no labels: put them into one sub-folder per class.")
    if len(labels) != len(features):
        raise DataError(f"every {name} image needs a label, received {len(labels)} labels for {len(features)} images.")
    if not (np.issubdtype(labels.dtype, np.integer) or labels.dtype == np.bool_):
        raise DataError(f"{name} labels must be integers, received {labels.dtype}.")
    return labels.astype(np.int64, copy=False)


def _single(name: str, features: Features, labels: Labels | None) -> Labels:
    found = _labels(name, features, labels)
    if found.ndim != 1:
        raise DataError(
            f"{name} labels must be one number per image, received an array of shape {found.shape}. Give one label "
            "per image."
        )
    if found.min() < 0:
        raise DataError(
            f"{int((found < 0).sum())} of the {name} images have no label (a negative number). Leave them out."
        )
    return found


def _multiple(name: str, features: Features, labels: Labels | None) -> NDArray[np.bool_]:
    found = _labels(name, features, labels)
    if found.ndim != 2 or not found.shape[1]:
        raise DataError(
            f"{name} labels must be an array of images × classes for a multi-label set, received shape {found.shape}."
        )
    return found > 0
