"""VOC for detection: images with boxes, as they are stored and as a training step sees them."""

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from carp.errors import DataError, plain
from carp.evaluation.detection.voc_metric import Boxes
from carp.files.regular import read_text
from carp.images.decoding.decode import Pixels, decode, read_file
from carp.images.loading.order import permutation
from carp.images.loading.workers import by_workers
from carp.images.sources.paper.split_lists import VOC_CLASSES
from carp.random import Purpose, key, seed_of, uniforms

ORDER, VIEW, WEIGHTS, STEP = range(4)  # what a random number of a trial is for
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_NUMBER = {word: number for number, word in enumerate(VOC_CLASSES)}


@dataclass(frozen=True)
class Annotated:
    """An image and the objects in it."""

    path: Path
    truth: Boxes


@dataclass(frozen=True)
class Scene:
    """An image as a step sees it: bytes [3, H, W], boxes [N, 4] in its pixels, classes [N] from 1 on (0 is none)."""

    pixels: Tensor
    corners: Tensor
    classes: Tensor


def read_voc(root: Path, parts: Sequence[str]) -> list[Annotated]:
    """Read parts such as `2007:trainval` from a folder that contains VOCdevkit, or is VOCdevkit."""
    home = root / "VOCdevkit" if (root / "VOCdevkit").is_dir() else root
    images = []
    for part in parts:
        year, _, word = part.partition(":")
        folder = home / f"VOC{year}"
        listed = folder / "ImageSets" / "Main" / f"{word}.txt"
        try:
            names = [line.split()[0] for line in read_text(listed).splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read {listed}, the list of VOC {part}: {getattr(error, 'strerror', None) or error}. Give the "
                "folder that contains VOCdevkit with --data; train=2007:train --test 2007:val select other parts."
            ) from error
        images += [
            Annotated(folder / "JPEGImages" / f"{name}.jpg", _read_boxes(folder / "Annotations" / f"{name}.xml"))
            for name in names
        ]
    if not images:
        raise DataError(f"the lists of VOC {' and '.join(parts)} in {home} name no images. Unpack the dataset again.")
    return images


def fingerprint(images: Sequence[Annotated]) -> str:
    """Return a hash of the names of images and of their boxes."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(image.path.name.encode())
        for array in (image.truth.corners, image.truth.classes, image.truth.scores):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _read_boxes(path: Path) -> Boxes:
    try:
        objects = list(ET.parse(path).getroot().iter("object"))
        corners = [[float(one.findtext(f"bndbox/{side}", "")) for side in _SIDES] for one in objects]
        classes = [_NUMBER[one.findtext("name", "").strip()] for one in objects]
    except KeyError as error:
        raise DataError(
            f"{path} has an object {error}, which is not a class of VOC. Unpack the dataset again."
        ) from None
    except (OSError, ET.ParseError, ValueError) as error:
        raise DataError(f"cannot read the annotation {path}: {error}. Unpack the dataset again.") from error
    difficult = [float(one.findtext("difficult", "0").strip() == "1") for one in objects]
    # Pixels are counted from 1 and both corners are inside: (1, W) is the whole width, 0 to W
    boxes = np.array(corners, dtype=np.float64).reshape(-1, 4) - (1, 1, 0, 0)
    if not (np.isfinite(boxes).all() and (boxes[:, 2:] > boxes[:, :2]).all()):
        raise DataError(f"{path} has an empty box: xmax and ymax must be greater than xmin and ymin.")
    return Boxes(boxes, np.array(classes, dtype=np.int64), np.array(difficult))


def read_pixels(image: Annotated) -> Pixels:
    """Return RGB bytes [H, W, 3]."""
    return decode(read_file(image.path), str(image.path))


class Scenes(Dataset["list[Scene] | DataError"]):
    """Training images, randomly scaled and flipped; both depend on (seed, trial, epoch, image) alone."""

    def __init__(
        self, images: Sequence[Annotated], *, sizes: Sequence[int], max_size: int, seed: int, trial: int
    ) -> None:
        # An image without objects has nothing to train on
        self.images = [image for image in images if len(image.truth.classes)]
        self.sizes, self.max_size, self.seed, self.trial = tuple(sizes), max_size, seed, trial

    def batches(self, first: int, last: int, *, batch_size: int, workers: int) -> Generator[list[Scene]]:
        """Yield the batches of these steps."""
        items = self._items(first, last, batch_size)
        made = by_workers(self, items, workers) if workers else (self.__getitems__(batch) for batch in items)
        with closing(made):  # ends the workers here, even while a raised error still refers to them
            for batch in made:
                if isinstance(batch, DataError):  # a raised exception would arrive as a worker's traceback
                    raise batch
                yield batch

    def _items(self, first: int, last: int, batch_size: int) -> Iterator[list[tuple[int, int]]]:
        """(epoch, image) of every step: a stream of whole epochs, cut into batches."""
        count, order_of, order = len(self.images), -1, np.empty(0, dtype=np.int64)
        for step in range(first, last):
            batch = []
            for place in range(step * batch_size, (step + 1) * batch_size):
                epoch = place // count
                if epoch != order_of:
                    chosen = seed_of(self.seed, Purpose.DETECTION, ORDER, self.trial, epoch)
                    order_of, order = epoch, permutation(count, chosen, groups=None, window=count)
                batch.append((epoch, int(order[place % count])))
            yield batch

    def __getitems__(self, items: list[tuple[int, int]]) -> "list[Scene] | DataError":
        try:
            return [self._scene(epoch, index) for epoch, index in items]
        except DataError as error:
            return plain(error)

    def _scene(self, epoch: int, index: int) -> Scene:
        image = self.images[index]
        chance = uniforms(key(self.seed, Purpose.DETECTION, VIEW, self.trial, epoch, index), 2)
        pixels = read_pixels(image)
        height, width, _ = pixels.shape
        side = self.sizes[int(chance[0] * len(self.sizes))]
        scale = min(side / min(height, width), self.max_size / max(height, width))
        new = max(1, round(width * scale)), max(1, round(height * scale))
        scaled = cv2.resize(pixels, new, interpolation=cv2.INTER_LINEAR)
        corners = image.truth.corners * np.tile((new[0] / width, new[1] / height), 2)
        if chance[1] < 0.5:
            scaled = scaled[:, ::-1]
            corners = np.stack([new[0] - corners[:, 2], corners[:, 1], new[0] - corners[:, 0], corners[:, 3]], axis=1)
        return Scene(
            torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1))),
            torch.from_numpy(corners).float(),
            torch.from_numpy(image.truth.classes + 1),
        )
