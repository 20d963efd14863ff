"""Features with labels, as a protocol receives them: a training part, and a test part or a substitute for it."""

from dataclasses import dataclass, replace
from typing import Union

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.feature_arrays import Features, Labels
from carp.evaluation.linear.choice import choose_held_out
from carp.evaluation.protocol import WithoutTest
from carp.features.store import Origin, Store, transform_differences
from carp.images.source import Source

_TEST_SHARE = 0.2  # of every class, where a protocol needs test images and none are given
_SPLIT_SEED = 0

WithClasses = Union["LabelledFeatures", Source]


@dataclass(frozen=True)
class LabelledFeatures:
    """Features [N, F] of images and their labels, [N] or [N, C]."""

    features: Features
    labels: Labels
    classes: tuple[str, ...]
    images: NDArray[np.int64]
    """The image of the data that every row belongs to."""
    name: str
    """The name of the images in results."""
    origin: Origin
    store: Store
    source: Source | None = None
    """The images; None if only their features were given."""

    @property
    def num_unreadable(self) -> int:
        """Images without features because they cannot be read."""
        return len(self.store.unreadable)

    def paths(self) -> list[str]:
        """Return the path of every row's image."""
        everywhere = list(self.store.places())
        return [everywhere[row] for row in np.searchsorted(self.store.image_of_row(), self.images)]

    def rows(self, chosen: NDArray[np.bool_], name: str) -> "LabelledFeatures":
        """Return the rows that are marked."""
        features, labels = self.features[chosen], self.labels[chosen]
        return replace(self, features=features, labels=labels, images=self.images[chosen], name=name)


def labelled_features(store: Store, source: Source | None, origin: Origin | None = None) -> LabelledFeatures:
    """Return all features of a store; `origin` is the current one if the model was renamed later."""
    assert store.labels is not None
    return LabelledFeatures(
        features=store.features,
        labels=store.labels,
        classes=store.classes,
        images=store.image_of_row(),
        name=store.name if source is None else source.name,
        origin=origin or store.origin,
        store=store,
        source=source,
    )


def without_test_images(train: LabelledFeatures, way: WithoutTest) -> tuple[LabelledFeatures, LabelledFeatures | None]:
    """Return the training and test parts if no test images were given (docs/protocols.md); None means leave-one-out."""
    if way == "leave one out":
        return train, None
    if way == "the same images":
        return train, replace(train, name=way)
    if train.labels.ndim > 1:
        raise DataError(f"{train.name} has several labels per image: give test images with --test.")
    held_out = choose_held_out(train.labels, _TEST_SHARE, _SPLIT_SEED)
    return train.rows(~held_out, train.name), train.rows(held_out, f"{_TEST_SHARE:.0%} of every class, held out")


def with_test_images(train: LabelledFeatures, test: LabelledFeatures) -> tuple[LabelledFeatures, LabelledFeatures]:
    """Return the training and test parts, both from one encoder and with the same class numbers."""
    _check_same_encoder(train, test)
    if train.classes == test.classes:
        return train, test
    numbers = class_numbers(train, test)
    if test.labels.ndim == 1:
        labels = numbers[test.labels]
    else:
        labels = np.zeros((len(test.labels), len(train.classes)), dtype=np.int64)
        labels[:, numbers] = test.labels
    return train, replace(test, labels=labels, classes=train.classes)


def class_numbers(train: WithClasses, test: WithClasses) -> NDArray[np.int64]:
    """Return the training number of every class of the test images; raise if one has none."""
    check_classes(train, test)
    return np.array([train.classes.index(name) for name in test.classes], dtype=np.int64)


def check_classes(train: WithClasses, test: WithClasses) -> None:
    """Raise if test images have a class that no training image has."""
    unknown = sorted(set(test.classes) - set(train.classes))
    if unknown:
        raise DataError(
            f"{train.name} and {test.name} have different classes: '{unknown[0]}' is only in {test.name}. "
            "Give test images of the training classes."
        )


def _check_same_encoder(train: LabelledFeatures, test: LabelledFeatures) -> None:
    """Refuse features of two encoders, layers or transforms: equal lengths do not make them comparable."""
    ours, theirs = (
        {"weights": part.origin.model["hash"][:8], "layer": part.origin.model["layer"], **part.origin.transform}
        for part in (train, test)
    )
    if differing := transform_differences(ours, theirs):
        raise DataError(
            f"the features of {train.name} and {test.name} were extracted in different ways ({'; '.join(differing)}): "
            "embed both with the same encoder and settings."
        )
