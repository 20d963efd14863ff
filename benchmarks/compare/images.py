"""The images of a comparison: for training, for the choice, and for the test, which are opened only at the end."""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from carp.config import SMALL_IMAGE
from carp.console.progress import Display
from carp.errors import ConfigError, DataError, received
from carp.evaluation.labelled_features import class_numbers
from carp.images.labels import single_labels
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_images
from carp.images.source import Openable
from carp.images.sources.array import ArraySource
from carp.random import Purpose, key

_MOST_HELD_OUT, _SHARE_HELD_OUT = 5_000, 0.2
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ComparedImages:
    """The images of one dataset.

    Attributes:
        train: All training images.
        test: Where the test images are; they are opened when `tested` is first used.
        size: The side of an image.
        limit: The number of images to train on; None is all.
        held_out: How many training images judge the trials; None is a fifth, at most 5,000.
        group: A regular expression; images whose names agree in what it matches are held out together or not at all.
        root: Folder of datasets, for `dataset:NAME`.
    """

    train: ArraySource
    test: Openable
    size: int
    limit: int | None = None
    held_out: int | None = None
    group: str | None = None
    root: str | None = None
    display: Display = field(default_factory=lambda: Display(quiet=True), repr=False)

    @classmethod
    def open(
        cls,
        train: Openable,
        test: Openable,
        size: int,
        *,
        limit: int | None = None,
        held_out: int | None = None,
        group: str | None = None,
        root: str | None = None,
        display: Display | None = None,
    ) -> "ComparedImages":
        """Open and read the training images."""
        display = display or Display(quiet=True)
        if size > SMALL_IMAGE:
            raise ConfigError(f"the size must be at most {SMALL_IMAGE}, received {size}: images are held in memory.")
        found = _read(train, size, root, display)
        return cls(found, test, size, limit, held_out, group, root, display)

    @cached_property
    def tested(self) -> ArraySource:
        """The test images. Nothing before the final jobs may use them."""
        found = _read(self.test, self.size, self.root, self.display)
        labels = class_numbers(self.train, found)[single_labels(found)]
        return ArraySource(found.images, labels, self.train.classes, name=found.name, fingerprint=found.fingerprint)

    @cached_property
    def _split(self) -> tuple[Indices, Indices]:
        """The training images that are not held out, in random order, and those that are."""
        wanted = self.held_out or min(_MOST_HELD_OUT, int(_SHARE_HELD_OUT * len(self.train)))
        groups = self._groups()
        order = _shuffled(groups, 0)
        if not 0 < wanted < len(self.train):
            raise ConfigError(f"{wanted} of {len(self.train)} images cannot be held out. Give another --held-out.")
        last = groups[order[wanted - 1]]
        count = wanted + int((groups[order[wanted:]] == last).sum())  # the whole of the last group
        if count == len(self.train):
            raise ConfigError(f"--group {received(self.group)} puts all images into one group. Give another pattern.")
        rest = order[count:]
        return rest[_shuffled(rest, 1)], order[:count]

    def _groups(self) -> Indices:
        """Return the number of the group of every image."""
        if self.group is None:
            return np.arange(len(self.train))
        pattern = re.compile(self.group)
        found = [pattern.search(self.train.place(index)) for index in range(len(self.train))]
        if None in found:
            where = self.train.place(found.index(None))
            raise ConfigError(f"--group {received(self.group)} matches nothing in {where}. Give another pattern.")
        names = np.array([match[0] for match in found if match is not None])
        numbers: Indices = np.unique(names, return_inverse=True)[1]
        return numbers

    @property
    def for_trials(self) -> ArraySource:
        """The images that trials train on, which are also the bank of k-NN: none of those held out."""
        return self._part(self._split[0][: self.limit])

    @property
    def judging(self) -> ArraySource:
        """The images that are held out."""
        return self._part(self._split[1])

    @property
    def for_finals(self) -> ArraySource:
        """The images that the chosen setting is trained on: all of them, or as many as for trials."""
        return self._part(_shuffled(np.arange(len(self.train)), 2)[: self.limit])

    def _part(self, indices: Indices) -> ArraySource:
        source = self.train
        assert source.labels is not None
        return ArraySource(source.images[indices], source.labels[indices], source.classes, name=source.name)


def _shuffled(groups: Indices, purpose: int) -> Indices:
    """Return an order of the images that is random in the groups and keeps each of them together."""
    return np.argsort(key(0, Purpose.TRIAL, purpose, groups), kind="stable")


def _read(data: Openable, size: int, root: str | None, display: Display) -> ArraySource:
    source = open_images(data, display, root=root)
    single_labels(source)
    with display.counting("reading images", len(source)) as progress:
        held = hold_in_memory(source, size, progress=progress)
    if held.unreadable:
        first = next(iter(held.unreadable))
        raise DataError(
            f"{len(held.unreadable)} images cannot be read, such as {held.place(first)}: a comparison needs all of "
            "them. Remove or replace them."
        )
    return held
