"""The environment of a protocol: an encoder, images, their features, and a folder for everything that is kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carp.console.progress import Display
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.model_argument import is_weights, name_of_weights
from carp.encoders.packaged import or_default
from carp.encoders.take_features import open_images, take_features
from carp.errors import ConfigError
from carp.evaluation.labelled_features import LabelledFeatures, labelled_features
from carp.evaluation.result import Result
from carp.features.feature_options import FeatureOptions
from carp.features.store import Origin, Store, is_store, open_store, read_manifest
from carp.images.source import Openable, Source
from carp.images.views.interpolation import DEFAULT_INTERPOLATION
from carp.runs.epoch_argument import split_epoch

STORES = "features"  # sub-folder: one feature store per origin


def output_folder(model: str | Path | None, out: str | Path | None) -> Path:
    """Return the folder for features and results: `out`, the run folder, or a folder named after the weights."""
    if out is not None or model is None:
        return Path(out or ".")
    return Path(name_of_weights(model)) if is_weights(model) else split_epoch(model)[0]


def model_for(
    model: str | Path | None, data: Openable | Store, say: Callable[[str], None] = lambda _: None
) -> str | Path | None:
    """The model to evaluate: the one that was given, none for stored features, or the default weights."""
    stored = isinstance(data, Store) or (isinstance(data, str | Path) and is_store(data))
    return model if stored else or_default(model, say)


@dataclass(frozen=True)
class Workspace:
    """One encoder of a model, and the place where its features and its results are kept."""

    model: str | Path | None
    """A run folder, `RUN@25`, or weights; None to evaluate stored features."""
    branch: str
    encoder: Encoder | None
    """None for stored features, and for a protocol that loads the model itself."""
    options: FeatureOptions
    folder: Path
    display: Display
    predict: bool = False
    """Whether to predict a class for every test image."""

    def open(self, data: Openable | Store) -> Source | Store:
        """Open images or stored features."""
        if isinstance(data, Store):
            return data
        if isinstance(data, str | Path) and is_store(data):
            return open_store(Path(data))
        return self.open_images(data)

    def open_images(self, data: Openable) -> Source:
        """Open images, labelled or not."""
        if self.model is None:
            raise ConfigError(
                f"{data} contains no stored features. Also give a run folder, or give a folder that `carp embed` wrote."
            )
        return open_images(data, self.required_encoder(), self.options, self.display)

    def take(self, opened: Source | Store) -> LabelledFeatures:
        """Return the features of images: stored, found in the folder, or extracted now."""
        if isinstance(opened, Store):
            return labelled_features(opened, None)
        store, origin = self.take_any(opened)
        return labelled_features(store, opened, origin)

    def take_any(self, source: Source) -> tuple[Store, Origin]:
        """The features of images, labelled or not, and their origin: found in the folder, or extracted now."""
        encoder = self.required_encoder()
        # The current origin: if a run was renamed, its stored features have the old name
        origin = encoder.origin(source, self.options.precision)
        return take_features(encoder, source, self.store_folder(origin), self.options, self.display), origin

    def store_folder(self, origin: Origin) -> Path:
        """Return the folder for the features of this origin.

        An earlier version did not record the sample. Its features are used again if they are of the same path.
        """
        stores = self.folder / STORES
        earlier = stores / origin.without_sample().key()[:16]
        if is_store(earlier) and read_manifest(earlier).name == origin.data["name"]:
            return earlier
        return stores / origin.key()[:16]

    def required_encoder(self) -> Encoder:
        """Return the encoder; raise an error if only stored features were given."""
        if self.encoder is None:
            raise ConfigError("this protocol needs images in their original sizes: give a run folder or weights.")
        return self.encoder


def with_origin(result: Result, origin: Origin, data: dict[str, Any]) -> Result:
    """Add the origin of the features to a result."""
    transform = {**origin.transform}
    if "size" in transform:
        transform.setdefault("interpolation", DEFAULT_INTERPOLATION)
    return replace(result, settings={**transform, **result.settings}, data=data, model=origin.model)
