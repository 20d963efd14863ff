"""A frozen encoder, ready for use: the network, the images that it takes, and where its weights come from."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from torch import nn

from carp.config import MAX_IMAGE_PIXELS
from carp.encoders.layers import weights_hash
from carp.errors import CarpWarning, ConfigError, ModelError
from carp.features.extract import Features, Progress, default_resize, extract, feature_batches
from carp.features.feature_options import ENCODER, Precision
from carp.features.filling import fill_store
from carp.features.store import Origin, Store
from carp.images.identity import describe_data
from carp.images.open_source import open_source
from carp.images.source import MapStyle, Source, is_collection
from carp.images.sources.array import ArraySource
from carp.images.sources.given_images import GivenImages, ImageLike
from carp.images.views.centre_crop import TRANSFORM
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation
from carp.model.branch import Branch


class Encoder:
    """A frozen network that maps images to features, with its image size and its origin."""

    def __init__(
        self,
        module: nn.Module,
        *,
        size: int,
        device: torch.device,
        name: str = "",
        branch: str = "",
        layer: str = ENCODER,
        epochs: int | None = None,
        epoch: int | None = None,
        resize: int | None = None,
        interpolation: Interpolation | None = None,
        path: str = "",
        max_pixels: int = MAX_IMAGE_PIXELS,
        root: str | None = None,
    ) -> None:
        self.module, self.size, self.device = module.eval().to(device), size, device
        self.resize = default_resize(size) if resize is None else resize
        if not 1 <= self.size <= self.resize:
            raise ConfigError(
                f"images are resized to {self.resize} pixels (resize) and then cropped to {self.size} (size). size "
                "must be at least 1, and resize at least size."
            )
        self.interpolation: Interpolation = interpolation or DEFAULT_INTERPOLATION
        self.name, self.branch, self.layer = name, branch, layer
        self.epochs = epochs  # that it was trained for
        self.epoch = epoch  # the requested one; None is the newest checkpoint of a run
        self.path = path  # from which it can be loaded again
        self.max_pixels = max_pixels  # of a stored image; larger images count as unreadable
        self.root = root  # of torchvision's datasets, in the run that trained it

    def __repr__(self) -> str:
        features = getattr(self.module, "num_features", "?")
        return f"Encoder({type(self.module).__name__}, {features} features, {self.size} px, {self.device})"

    @property
    def label(self) -> str:
        """The branch of a run, with the requested epoch."""
        return self.branch if self.epoch is None else f"{self.branch}@{self.epoch}"

    @cached_property
    def hash(self) -> str:
        """A hash of the weights and of the network."""
        return weights_hash(self.module)

    @property
    def prototypes(self) -> Features:
        """The prototypes [K, D] in the space of the embeddings, each of length 1; loaded with `layer="projector"`."""
        if not isinstance(self.module, Branch):
            raise ModelError(
                f"prototypes belong to embeddings, received the layer '{self.layer}'. Load the model with "
                "layer='projector'."
            )
        prototypes: Features = self.module.assigner().detach().cpu().numpy()
        return prototypes

    def description(self) -> dict[str, Any]:
        """Return the description that results and stored features record."""
        known = {"name": self.name, "hash": self.hash, "branch": self.branch, "layer": self.layer}
        trained = {"epochs": self.epochs, "epoch": self.epoch}
        return known | {key: value for key, value in trained.items() if value is not None}

    def store(
        self,
        source: Source,
        folder: Path,
        *,
        precision: Precision = "fp32",
        batch_size: int = 256,
        progress: Progress = lambda _done, _all: None,
    ) -> Store:
        """Return the features of a source, extracted into a folder or found there."""
        origin = self.origin(source, precision)
        if self.path:  # lets other commands embed more images; it is not part of the origin's hash
            origin = replace(origin, model=origin.model | {"path": self.path})
        encode = partial(
            feature_batches,
            self.module,
            size=self.size,
            device=self.device,
            batch_size=batch_size,
            precision=precision,
            resize=self.resize,
            interpolation=self.interpolation,
        )
        return fill_store(folder, origin, source, encode, batch_size=batch_size, progress=progress)

    def origin(self, source: Source, precision: Precision = "fp32") -> Origin:
        """Return the origin of the features of a source: model, transform and data."""
        if precision not in get_args(Precision):
            raise ConfigError(f"precision must be {' or '.join(get_args(Precision))}, received '{precision}'.")
        transform: dict[str, Any] = {
            "size": self.size,
            "resize": self.resize,
            "precision": precision,
            "transform": TRANSFORM,
        }
        if self.interpolation != DEFAULT_INTERPOLATION:  # stored features that do not name it are bicubic
            transform["interpolation"] = self.interpolation
        return Origin(
            model=self.description(),
            transform=transform,
            data=describe_data(source),
        )

    def embed(
        self,
        images: ImageLike | Sequence[ImageLike] | MapStyle,
        *,
        batch_size: int = 256,
        precision: Precision = "fp32",
    ) -> Features:
        """Return pooled features [N, F] as float32.

        Args:
            images: A folder or any other data that `carp train` takes, an image file, a PIL image, an array [H, W, 3]
                or [N, H, W, 3] of bytes, a list of image files, PIL images or arrays [H, W, 3], or a dataset.
            batch_size: Images at a time.
            precision: `bf16` is faster if the processor supports it.

        An unreadable image in a folder is left out with a warning; an unreadable image that you named is an error.
        """
        source: Source
        by_name = False
        if isinstance(images, str | Path) and (not Path(images).is_file() or is_collection(Path(images))):
            source = open_source(images)
        elif isinstance(images, np.ndarray) and images.ndim == 4:
            source = ArraySource(images)
        elif isinstance(images, str | Path | Image.Image | np.ndarray):
            by_name, source = True, GivenImages([images])
        elif isinstance(images, list | tuple):
            by_name, source = True, GivenImages(images)
        else:
            source = open_source(images)  # a dataset; anything else is an error
        found = extract(
            self.module,
            source,
            size=self.size,
            device=self.device,
            batch_size=batch_size,
            strict=by_name,
            precision=precision,
            resize=self.resize,
            interpolation=self.interpolation,
        )
        if note := found.note():
            warnings.warn(note, CarpWarning, stacklevel=2)
        return found.features
