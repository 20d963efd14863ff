"""The features of images for a command: found on disk, or extracted with a progress bar."""

import warnings
from pathlib import Path

from carp.compute import distributed
from carp.console.progress import Display
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import load_encoder
from carp.encoders.packaged import or_default
from carp.errors import CarpWarning, DataError
from carp.features.extract import left_out
from carp.features.feature_options import FeatureOptions
from carp.features.store import Store, is_store, open_store
from carp.images import open_source
from carp.images.decoding.decode import pixel_limit
from carp.images.identity import describe_data, is_same_data
from carp.images.source import Openable, Source
from carp.runs.epoch_argument import split_epoch
from carp.runs.run_folder import INDEX, is_run


def open_images(data: Openable, encoder: Encoder, options: FeatureOptions, display: Display) -> Source:
    """Open images with the `root` and the cached index of a run, but never with its permission to download."""
    index = split_epoch(encoder.path)[0] / INDEX if is_run(encoder.path) else None
    root = options.root or encoder.root
    return open_source.open_images(data, display, root=root, download=options.download, index=index)


def images_and_features(
    data: Openable,
    model: str | Path | None,
    folder: Path,
    *,
    branch: str,
    options: FeatureOptions,
    display: Display,
) -> tuple[Source, Store]:
    """The images of a command and their features: stored in a folder already, or extracted into it by a model.

    Args:
        data: The images.
        model: A run or weights. None is the stored features in the folder, or the default weights if there are none.
        folder: The feature store.
        branch: Encoder of a run.
        options: How features are extracted.
        display: Shows the progress.
    """
    if model is not None or not is_store(folder):
        encoder = load_encoder(or_default(model, display.say), branch, options)
        source = open_images(data, encoder, options, display)
        return source, take_features(encoder, source, folder, options, display)
    source = open_source.open_images(data, display, root=options.root, download=options.download)
    store = open_store(folder)
    if not is_same_data(store.origin.data, describe_data(source)):
        name = store.origin.data["name"]
        raise DataError(f"{folder} contains the features of {name}, not of {source.name}. Give --model to embed these.")
    return source, store


def take_features(encoder: Encoder, source: Source, folder: Path, options: FeatureOptions, display: Display) -> Store:
    """Open the features of a source in a folder, or extract them there; warn about images that cannot be read.

    Args:
        encoder: Loaded with the same options.
        source: The images.
        folder: The feature store. An interrupted extraction resumes there.
        options: Only `precision` and `batch_size` are used.
        display: Shows the progress.
    """
    what = ", ".join(part for part in (encoder.label, source.name) if part)
    with pixel_limit(encoder.max_pixels), display.counting(what, len(source)) as progress:
        store = encoder.store(
            source, folder, precision=options.precision, batch_size=options.batch_size, progress=progress
        )
    if note := left_out(store.unreadable, len(store.features), source.name):
        if not display.console.quiet:
            display.warn_once(note)
        elif distributed.rank() == 0:
            warnings.warn(note, CarpWarning, stacklevel=4)
    return store
