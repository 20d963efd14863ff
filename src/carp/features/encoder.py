"""A trained encoder, ready for use: `carp.load(run).embed(images)`."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from carp.config import Config
from carp.data.decode import Pixels, Stored, read_file
from carp.data.map_style import MapStyle
from carp.data.random import Purpose, seed_of
from carp.data.source import ArraySource, Source, is_collection, open_source
from carp.device import choose_device
from carp.errors import CheckpointError, DataError, UnreadableImageError
from carp.features.extract import Features, extract
from carp.model.branch import Branch
from carp.run_folder import open_run

BranchName = Literal["teacher", "student"]
ImageLike = str | Path | Image.Image | Pixels


class Encoder:
    """f of one branch, with the image size it was trained for."""

    def __init__(self, module: nn.Module, *, size: int, device: torch.device) -> None:
        self.module, self.size, self.device = module.eval().to(device), size, device

    def __repr__(self) -> str:
        features = getattr(self.module, "num_features", "?")
        return f"Encoder({type(self.module).__name__}, {features} features, {self.size} px, {self.device})"

    def embed(self, images: ImageLike | Sequence[ImageLike] | MapStyle, *, batch_size: int = 256) -> Features:
        """Pooled features [N, F] as float32.

        Args:
            images: A folder or whatever else `carp train` takes, an image file, a PIL image, an array [H, W, 3] or
                [N, H, W, 3] of bytes, a list of image files, PIL images or arrays [H, W, 3], or a data set.
            batch_size: Images at a time.

        An image of a folder that cannot be read is left out, with a warning; one that was asked for by its own name
        is an error.
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
            source = open_source(images)  # a data set, or nothing that has images
        found = extract(self.module, source, size=self.size, device=self.device, batch_size=batch_size, strict=by_name)
        if note := found.note():
            warnings.warn(note, stacklevel=2)
        return found.features


class _Images:
    """Images given one by one, as a source."""

    name, fingerprint, labels, classes = "images", "", None, ()

    def __init__(self, images: list[ImageLike]) -> None:
        if not images:
            raise DataError("there is nothing to embed: received no image.")
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, index: int) -> Stored:
        image = self._images[index]
        if isinstance(image, str | Path):
            return read_file(Path(image))
        if isinstance(image, Image.Image):
            try:
                return np.array(image.convert("RGB"))  # opened, but maybe not yet decoded
            except (OSError, ValueError) as error:
                raise UnreadableImageError(self.place(index), " ".join(str(error).split())) from error
        return _checked(image)

    def place(self, index: int) -> str:
        image = self._images[index]
        return str(image) if isinstance(image, str | Path) else f"number {index}"


def load(path: str | Path, branch: BranchName = "teacher", *, device: str = "auto") -> Encoder:
    """Load the encoder of a run: the teacher's by default, or the student's."""
    if branch not in ("teacher", "student"):
        raise CheckpointError(f"branch must be 'teacher' or 'student', received '{branch}'.")
    run = open_run(path)
    tensors = run.newest().tensors
    stored = "student" if run.config.siamese else branch
    prefix = f"model.{stored}.encoder."
    weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    module = Branch(run.config).encoder
    module.load_state_dict(weights)
    return Encoder(module, size=run.config.global_size, device=choose_device(device))


def untrained(config: Config, *, device: str = "auto") -> Encoder:
    """The encoder that a configuration starts from, with the same seed."""
    torch.manual_seed(seed_of(config.seed, Purpose.WEIGHTS))
    return Encoder(Branch(config).encoder, size=config.global_size, device=choose_device(device))


def _checked(pixels: NDArray[np.uint8]) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise DataError(f"an image array must be uint8 [H, W, 3], received {pixels.dtype} {list(pixels.shape)}.")
    return pixels
