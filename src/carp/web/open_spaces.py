"""Opens what `carp explore` is given: stored features, a run with images, or an array of vectors with images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from carp.console.progress import Display
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import encoder_of, load_encoder
from carp.errors import CheckpointError, ConfigError, DataError
from carp.evaluation.workspace import Workspace
from carp.features.extract import Features
from carp.features.feature_options import FeatureOptions
from carp.features.store import Store, is_store, open_store
from carp.images.identity import describe_data, is_same_data
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.runs.epoch_argument import split_epoch
from carp.runs.run_folder import INDEX, is_run
from carp.web.collection import ImageCollection
from carp.web.space import Space

MOST_SPACES = 4
_FEWEST = 3


@dataclass(frozen=True)
class Opening:
    """What was given besides the features."""

    data: Openable | None
    model: str | Path | None
    branch: str
    options: FeatureOptions
    display: Display


def open_spaces(given: Sequence[str | Path], how: Opening) -> tuple[ImageCollection, list[Space]]:
    """Open the images and one space per argument.

    Args:
        given: Folders of features, runs (`RUN@25`), or .npy files with one vector per image.
        how: The images and the rest.
    """
    if not 1 <= len(given) <= MOST_SPACES:
        raise ConfigError(f"give 1 to {MOST_SPACES} folders of features or runs, received {len(given)}.")
    for each in given:
        _check_kind(each)
    source = None
    if how.data is not None:
        run = next((split_epoch(each)[0] for each in given if is_run(each)), None)
        index = None if run is None else run / INDEX
        root, download = how.options.root, how.options.download
        source = open_images(how.data, how.display, root=root, download=download, index=index)
    images: ImageCollection | None = None
    spaces = []
    for each in given:
        opened, space = _open(each, source, how)
        if images is None:
            images = opened
        _check_same(images, opened, space, given)
        spaces.append(space)
    assert images is not None
    images.check()
    return images, _distinct(spaces, given)


def _check_kind(given: str | Path) -> None:
    path = Path(given).expanduser()
    if is_store(path) or is_run(path) or (path.suffix == ".npy" and path.is_file()):
        return
    if not split_epoch(path)[0].exists():
        raise DataError(f"there is no folder {given}. Give features that `carp embed` wrote, or a run.")
    raise DataError(
        f"{given} is neither features nor a run. Run `carp embed MODEL --data IMAGES --out FEATURES` and give "
        "FEATURES, or give the --out folder of `carp train`."
    )


def _open(given: str | Path, source: Source | None, how: Opening) -> tuple[ImageCollection, Space]:
    path = Path(given).expanduser()
    if path.suffix == ".npy" and path.is_file():
        return _open_array(path, source)
    if is_store(path):
        store = open_store(path)
        encoder = partial(encoder_of, store, how.model, device=how.options.device)
        _check_images(store, source)
        return ImageCollection(store, source), _space(path.name or str(path), store, encoder, how)
    if source is None:
        raise ConfigError(
            f"{given} is a run, which needs images to explore, but none were given. Give them with --data."
        )
    model = str(path)
    loaded = load_encoder(model, how.branch, how.options)
    work = Workspace(model, how.branch, loaded, how.options, split_epoch(path)[0], how.display)
    store, _ = work.take_any(source)
    return ImageCollection(store, source), _space(path.name, store, lambda: loaded, how, model)


def _space(name: str, store: Store, load: Callable[[], Encoder], how: Opening, model: str | None = None) -> Space:
    about = store.origin.model
    if len(store.features) < _FEWEST:
        raise DataError(f"{store.folder} has the features of {len(store.features)} images. Give at least {_FEWEST}.")
    known = model or how.model or about.get("path")
    return Space(
        name=name,
        features=store.features,
        key=store.origin.key(),
        folder=store.folder,
        model=None if known is None else str(known),
        branch=str(about.get("branch") or "teacher"),
        layer=str(about["layer"]),
        precision=store.origin.transform.get("precision", "fp32"),
        device=how.options.device,
        load=load,
    )


def _open_array(path: Path, source: Source | None) -> tuple[ImageCollection, Space]:
    """Vectors of any encoder: one row per image of the data, in the same order."""
    if source is None:
        raise ConfigError(f"{path} has vectors without images. Give the images with --data, in the same order.")
    try:
        features: Features = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header raises nearly anything
        raise DataError(
            f"cannot read {path}: {' '.join(str(error).split())}. Write it again with numpy.save."
        ) from None
    if features.ndim != 2 or features.dtype.kind != "f" or not features.shape[1]:
        shape = "×".join(map(str, features.shape))
        raise DataError(f"{path} must hold one vector per image, N×F floats, received {shape} {features.dtype}.")
    if len(features) != len(source):
        raise DataError(
            f"{path} has {len(features):,} vectors, but {source.name} has {len(source):,} images. Give the images that "
            "the vectors belong to, in the same order."
        )
    if len(features) < _FEWEST:
        raise DataError(f"{path} has {len(features)} vectors. Give at least {_FEWEST}.")
    return ImageCollection(source), Space(path.stem, features, path.name, None)


def _check_images(store: Store, source: Source | None) -> None:
    if source is not None and not is_same_data(store.origin.data, describe_data(source)):
        raise DataError(
            f"{store.folder} contains the features of {store.name}, not of {source.name}. Give the images that were "
            "embedded, or embed these with `carp embed`."
        )


def _check_same(one: ImageCollection, other: ImageCollection, space: Space, given: Sequence[str | Path]) -> None:
    """Raise unless two spaces have features of the same images."""
    if one is other:
        return
    if one.fingerprint != other.fingerprint or not np.array_equal(one.image_of_row, other.image_of_row):
        raise DataError(
            f"{given[0]} and {space.name} have features of different images ({one.name} and {other.name}). Embed the "
            "same images with both encoders to compare them."
        )


def _distinct(spaces: list[Space], given: Sequence[str | Path]) -> list[Space]:
    """Spaces with different names: those of their arguments, if the short names are equal."""
    if len({space.name for space in spaces}) < len(spaces):
        for space, each in zip(spaces, given, strict=True):
            space.name = str(each)
    if len({space.name for space in spaces}) < len(spaces):
        raise CheckpointError(f"{spaces[0].name} was given more than once. Give different features to compare them.")
    return spaces
