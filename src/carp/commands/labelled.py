"""What a protocol is given: features with labels, of images or from a store."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from carp.console.progress import Display
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.model_argument import is_weights, split_weights
from carp.encoders.take_features import open_images, take_features
from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Features, Labels
from carp.evaluation.linear.choice import choose_held_out
from carp.features.feature_options import FeatureOptions
from carp.features.store import Origin, Store, is_store, open_store, transform_differences
from carp.images.labels import single_labels, unlabelled
from carp.images.source import Openable, Source
from carp.images.sources.paper.dataset_source import counterpart

FEATURES, LINEAR = "features", "linear"  # sub-folders: stored features, the state of linear classifiers
_TEST_SHARE = 0.2  # of every class, where a protocol needs test images and none are given
_SPLIT_SEED = 0


def home_of(model: str | Path | None, out: str | Path | None) -> Path:
    """Where features and results are kept: in a run's own folder; of weights, in one of their name, here."""
    if out is not None or model is None:
        return Path(out or ".")
    return Path(split_weights(model)[1].name.partition(".")[0]) if is_weights(model) else Path(model)


@dataclass(frozen=True)
class Labelled:
    """Features with a label each; neither where every image of the other part is left out in turn."""

    features: Features | None
    labels: Labels | None
    classes: tuple[str, ...]
    images: NDArray[np.int64]
    """Which image of the data every row is."""
    origin: Origin
    left_out: int
    """Images that cannot be read."""
    name: str
    store: Store

    def places(self) -> list[str]:
        """Where the image of every row lies."""
        everywhere = list(self.store.places())
        return [everywhere[row] for row in np.searchsorted(self.store.image_of_row(), self.images)]

    def rows(self, chosen: NDArray[np.bool_], name: str) -> "Labelled":
        """Some of them."""
        assert self.features is not None
        assert self.labels is not None
        features, labels = self.features[chosen], self.labels[chosen]
        return replace(self, features=features, labels=labels, images=self.images[chosen], name=name)


@dataclass(frozen=True)
class StoredData:
    """Features that were stored before, in the place of images."""

    store: Store
    label_remedy: ClassVar[str] = "embed images that have labels"

    @property
    def name(self) -> str:
        """What the images are called."""
        return str(self.store.origin.data["name"])

    @property
    def labels(self) -> Labels | None:
        """Those of the images."""
        return self.store.labels

    def __len__(self) -> int:
        return len(self.store.features)


Opened = Source | StoredData


@dataclass(frozen=True)
class Inputs:
    """Turns what a person names as data into features, with an encoder or without."""

    encoder: Encoder | None
    model: str | Path | None
    out: str | Path | None
    options: FeatureOptions
    display: Display

    @property
    def folder(self) -> Path:
        """Where features and results are kept."""
        return home_of(self.model, self.out)

    def open_both(
        self, data: Openable | Store, test: Openable | Store | None, *, single: bool
    ) -> tuple[Opened, Opened | None]:
        """Open training and test part; a data set of the table brings its own test part. `single`: one label each."""
        if test is None and isinstance(data, str):
            test = counterpart(data)
        opened = [self._open(part) for part in (data, test) if part is not None]
        for part in opened:
            if part.labels is None:
                raise unlabelled(part)
            if single:
                single_labels(part, "this protocol")
        return opened[0], opened[1] if test is not None else None

    def _open(self, data: Openable | Store) -> Opened:
        if isinstance(data, Store):
            return StoredData(data)
        if isinstance(data, str | Path) and is_store(data):
            return StoredData(open_store(Path(data)))
        return self.images(data)

    def images(self, data: Openable) -> Source:
        """Open images, labelled or not."""
        if self.model is None:
            raise ConfigError(f"{data} holds no stored features: give a run folder too, or a folder of `carp embed`.")
        return open_images(data, self.model, self.options, self.display)

    def take_both(self, protocol: str, data: Opened, test: Opened | None) -> tuple[Labelled, Labelled]:
        """Features of both parts; without a test part there are three ways to do without (docs/protocols.md)."""
        train = self._take(data)
        if test is not None:
            tested = self._take(test)
            _check_one_encoder(train, tested)
            return train, _with_classes_of(train, tested)
        if protocol == "knn":
            return train, replace(train, features=None, labels=None, name="leave one out")
        if protocol == "kmeans":
            return train, replace(train, name="the same images")
        assert train.labels is not None
        if train.labels.ndim > 1:
            raise DataError(f"{train.name} has several labels per image: give test images with --test.")
        held_out = choose_held_out(train.labels, _TEST_SHARE, _SPLIT_SEED)
        how = f"{_TEST_SHARE:.0%} of every class, held out"
        return train.rows(~held_out, train.name), train.rows(held_out, how)

    def _take(self, data: Opened) -> Labelled:
        """Features that are stored, found, or extracted now."""
        if isinstance(data, StoredData):
            store, origin = data.store, data.store.origin
        else:
            assert self.encoder is not None
            assert self.model is not None
            # Of now: a run that was moved has another name than when its features were extracted
            origin = self.encoder.origin(data, self.options.precision)
            folder = self.folder / FEATURES / origin.key()[:16]
            store = take_features(self.encoder, data, folder, self.options, self.display)
        return Labelled(
            features=store.features,
            labels=store.labels,
            classes=store.classes,
            images=store.image_of_row(),
            origin=origin,
            left_out=len(store.unreadable),
            name=data.name,
            store=store,
        )

    def for_crops(self, data: Opened, train: Labelled) -> dict[str, Any]:
        """What training on random crops of the images needs beside features."""
        if isinstance(data, StoredData) or self.encoder is None:
            raise ConfigError("linear trains on random crops of the images: give the images, or add --cached.")
        return {
            "encoder": self.encoder.module,
            "source": data,
            "indices": train.images,
            "size": self.encoder.size,
            "device": self.encoder.device,
            "precision": self.options.precision,
            "weights_hash": f"{self.encoder.hash} {self.encoder.layer}",
            "state": self.folder / LINEAR,
        }


def _check_one_encoder(train: Labelled, test: Labelled) -> None:
    """Refuse features of two encoders, layers or transforms: they may have one length and no meaning together."""
    ours, theirs = (
        {"weights": part.origin.model["hash"][:8], "layer": part.origin.model["layer"], **part.origin.transform}
        for part in (train, test)
    )
    if differing := transform_differences(ours, theirs):
        raise DataError(
            f"the features of {train.name} and {test.name} were made in different ways ({'; '.join(differing)}): embed "
            "both with the same encoder and settings."
        )


def _with_classes_of(train: Labelled, test: Labelled) -> Labelled:
    """The test part with the numbers that the training part gives to its classes."""
    if train.classes == test.classes:
        return test
    unknown = sorted(set(test.classes) - set(train.classes))
    if unknown:
        raise DataError(f"{train.name} and {test.name} have different classes: '{unknown[0]}' is only in {test.name}.")
    assert test.labels is not None
    numbers = np.array([train.classes.index(name) for name in test.classes])
    if test.labels.ndim == 1:
        return replace(test, labels=numbers[test.labels], classes=train.classes)
    labels = np.zeros((len(test.labels), len(train.classes)), dtype=np.int64)
    labels[:, numbers] = test.labels
    return replace(test, labels=labels, classes=train.classes)
