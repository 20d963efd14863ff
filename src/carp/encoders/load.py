"""A trained encoder, ready for use: `carp.load(run).embed(images)`."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from carp.compute.device import choose_device
from carp.config import MAX_IMAGE_PIXELS
from carp.encoders.foreign import BY_NAME, foreign_encoder
from carp.encoders.layers import ENCODER, PROJECTOR, NamedLayer, weights_hash
from carp.encoders.read_export import CarpExport, build_own, read_own
from carp.errors import CarpWarning, CheckpointError, ConfigError, DataError, UnreadableImageError, nearest
from carp.features.extract import (
    RAW_PIXELS_SIDE,
    Features,
    Precision,
    Progress,
    extract,
    feature_batches,
    usual_resize,
)
from carp.features.filling import fill_store
from carp.features.store import Origin, Store
from carp.images.decoding.decode import Pixels, Stored, read_file
from carp.images.source import ArraySource, Source, is_collection, open_source
from carp.images.sources.map_style import MapStyle
from carp.images.views.centre_crop import TRANSFORM
from carp.model.branch import Branch
from carp.random import Purpose, seed_of
from carp.runs.run_folder import Run, open_run

BranchName = Literal["teacher", "student", "untrained", "raw pixels"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)
ImageLike = str | Path | Image.Image | Pixels


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
        resize: int | None = None,
        path: str = "",
        max_pixels: int = MAX_IMAGE_PIXELS,
    ) -> None:
        self.module, self.size, self.device = module.eval().to(device), size, device
        self.resize = usual_resize(size) if resize is None else resize
        if not 1 <= self.size <= self.resize:
            raise ConfigError(
                f"images are resized to {self.resize} pixels (resize) and then cropped to {self.size} (size). size "
                "must be at least 1, and resize at least size."
            )
        self.name, self.branch, self.layer, self.epochs = name, branch, layer, epochs
        self.path = path  # from which it can be loaded again
        self.max_pixels = max_pixels  # of a stored image; larger images count as unreadable

    def __repr__(self) -> str:
        features = getattr(self.module, "num_features", "?")
        return f"Encoder({type(self.module).__name__}, {features} features, {self.size} px, {self.device})"

    @cached_property
    def hash(self) -> str:
        """A hash of the weights and of the network."""
        return weights_hash(self.module)

    def description(self) -> dict[str, Any]:
        """Return the description that results and stored features record."""
        known = {"name": self.name, "hash": self.hash, "branch": self.branch, "layer": self.layer}
        return known | ({} if self.epochs is None else {"epochs": self.epochs})

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
        )
        return fill_store(folder, origin, source, encode, batch_size=batch_size, progress=progress)

    def origin(self, source: Source, precision: Precision = "fp32") -> Origin:
        """Return the origin of the features of a source: model, transform and data."""
        if precision not in get_args(Precision):
            raise ConfigError(f"precision must be {' or '.join(get_args(Precision))}, received '{precision}'.")
        return Origin(
            model=self.description(),
            transform={"size": self.size, "resize": self.resize, "precision": precision, "transform": TRANSFORM},
            data={"name": source.name, "fingerprint": source.fingerprint, "images": len(source)},
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
                or [N, H, W, 3] of bytes, a list of image files, PIL images or arrays [H, W, 3], or a data set.
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
            by_name, source = True, _Images([images])
        elif isinstance(images, list | tuple):
            by_name, source = True, _Images(list(images))
        else:
            source = open_source(images)  # a data set; anything else is an error
        found = extract(
            self.module,
            source,
            size=self.size,
            device=self.device,
            batch_size=batch_size,
            strict=by_name,
            precision=precision,
            resize=self.resize,
        )
        if note := found.note():
            warnings.warn(note, CarpWarning, stacklevel=2)
        return found.features


class _Images:
    """Images given one by one, as a source."""

    name, fingerprint, labels, classes = "images", "", None, ()

    def __init__(self, images: list[ImageLike]) -> None:
        if not images:
            raise DataError("embed needs at least one image, received none.")
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> Stored:
        image = self._images[index]
        if isinstance(image, str | Path):
            return read_file(Path(image))
        if isinstance(image, Image.Image):
            try:
                return np.array(image.convert("RGB"))  # it may not be decoded yet
            except (OSError, ValueError) as error:
                raise UnreadableImageError(self.place(index), " ".join(str(error).split())) from error
        return _checked(image)

    def place(self, index: int) -> str:
        image = self._images[index]
        return str(image) if isinstance(image, str | Path) else f"number {index}"


def load(
    model: str | Path,
    branch: str | Path = "teacher",
    *,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    device: str = "auto",
) -> Encoder:
    """Load the encoder of a run, or released weights of another method.

    Args:
        model: A run folder, a weights file (also one that `carp export` wrote as safetensors or for torchvision), or
            `METHOD:FILE` (`carp weights` lists the methods).
        branch: The branch of a run: `teacher` or `student`; for comparison, the encoder that the run started from
            (`untrained`) or no encoder at all (`raw pixels`, of images resized to at most 32 pixels). Weights have no
            branches: `load("swav", FILE)` is the same as `load("swav:FILE")`.
        layer: The output to use: `encoder` (pooled), `projector` (the embedding, for runs only), or the name of a layer
            of the encoder, such as `layer3`, averaged over positions.
        size: Side of the images in pixels; by default that of training.
        resize: Length in pixels to which the shorter side is resized before the centre crop; by default 8/7 of `size`,
            or `size` itself if that is at most 64.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    if model in BY_NAME and branch not in BRANCHES:
        return _load_weights(f"{model}:{branch}", layer, size, resize, device)
    if is_weights(model):
        return _load_weights(str(model), layer, size, resize, device)
    if branch not in BRANCHES:
        hint = nearest(str(branch), BRANCHES)
        raise CheckpointError(f"branch must be {', '.join(BRANCHES)}, received '{branch}'.{hint}")
    run = open_run(model)
    side = run.config.global_size if size is None else size
    module: nn.Module
    if branch == "raw pixels":
        module, layer, side, resize = nn.Flatten(), ENCODER, min(side, RAW_PIXELS_SIDE), None
    else:
        trained = _branch(run, str(branch))
        module = trained if layer == PROJECTOR else _output(trained.encoder, layer)
    return Encoder(
        module,
        size=side,
        device=choose_device(device),
        name=run.folder.resolve().name,
        branch=str(branch),
        layer=layer,
        epochs=run.config.epochs if branch in ("teacher", "student") else None,
        resize=resize,
        path=str(run.folder.resolve()),
        max_pixels=run.config.max_image_pixels,
    )


def is_weights(model: str | Path) -> bool:
    """Return whether a model is a weights file, `FILE` or `METHOD:FILE`, rather than a run folder."""
    path = Path(model)
    return split_weights(model)[0] is not None or (path.exists() and not path.is_dir())


def split_weights(model: str | Path) -> tuple[str | None, Path]:
    """Split `METHOD:FILE` or `FILE` into method (None if not named) and file."""
    method, sign, file = str(model).partition(":")
    if not sign or Path(model).exists():
        return None, Path(model)
    hint = nearest(method, BY_NAME)
    if method not in BY_NAME and (hint or Path(file).expanduser().is_file()):
        raise CheckpointError(f"'{method}' is not a format of weights.{hint} `carp weights` lists all formats.")
    return (method, Path(file)) if method in BY_NAME else (None, Path(model))


def _load_weights(model: str, layer: str, size: int | None, resize: int | None, device: str) -> Encoder:
    method, file = split_weights(model)
    if layer == PROJECTOR:
        raise CheckpointError(f"{file} is loaded without its projector. Use --layer encoder, or the name of a layer.")
    own = None if method else read_own(file.expanduser())
    if own is not None and own.method is None:
        return _load_export(own, layer, size, resize, device)
    module, weights = foreign_encoder(file.expanduser(), method or (own.method if own else None))
    return Encoder(
        _output(module, layer),
        size=weights.size if size is None else size,
        device=choose_device(device),
        name=file.name.partition(".")[0],
        layer=layer,
        resize=resize,
        path=f"{weights.method.name}:{file.expanduser().resolve()}",
    )


def _load_export(own: CarpExport, layer: str, size: int | None, resize: int | None, device: str) -> Encoder:
    """Load the encoder of a run from an export; it has the name of the run."""
    about, origin = own.about, own.about.origin
    return Encoder(
        _output(build_own(own), layer),
        size=about.size if size is None else size,
        device=choose_device(device),
        name=str(origin.get("run", own.path.name.partition(".")[0])),
        branch=str(origin.get("branch", "")),
        layer=layer,
        epochs=origin.get("epochs"),
        resize=about.resize if size is None and resize is None else resize,
        path=str(own.path.resolve()),
    )


def _branch(run: Run, name: str) -> Branch:
    torch.manual_seed(seed_of(run.config.seed, Purpose.WEIGHTS))  # as in training
    model = Branch(run.config)
    if name != "untrained":
        prefix = f"model.{'student' if run.config.siamese else name}."
        tensors = run.newest().tensors
        model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return model


def _output(encoder: nn.Module, layer: str) -> nn.Module:
    return encoder if layer == ENCODER else NamedLayer(encoder, layer)


def _checked(pixels: NDArray[np.uint8]) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise DataError(f"an image array must be uint8 [H, W, 3], received {pixels.dtype} {list(pixels.shape)}.")
    return pixels
