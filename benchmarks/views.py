"""Views beside torchvision on Pillow, as DINO and the paper's authors make them: images/s of one core.

    python -m benchmarks.views                   # a table of ratios, photographs of 500 × 375
    python -m benchmarks.views --photos FOLDER   # with your own
    python -m benchmarks.views --json            # the same, and a last line of JSON with the targets

Both sides go from stored images to normalised batches through a `DataLoader` without workers, one thread, in turns;
the best round counts. Time is that of the processor, so that other work on the machine disturbs little.
"""

import argparse
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from benchmarks.shared import judged
from carp.config import IMAGENET_MEAN, IMAGENET_STD, Config
from carp.config.recipe import read_recipe
from carp.images.decoding.decode import Pixels, Stored, decode
from carp.images.loading.loader import Loader, PhotoLoader, SmallImageLoader, normalise
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.sources.embedded import shapes
from carp.images.sources.folder import FolderSource
from carp.images.views.view_parameters import ViewKind, view_kinds

CPU = torch.device("cpu")
WIDTH, HEIGHT, QUALITY = 500, 375, 90
SAMPLES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "motorcycle_right.png")


def stored_photographs(count: int) -> tuple[list[bytes], str]:
    """JPEGs of 500 × 375, cut from photographs that come with scikit-image; and where they are from."""
    try:
        folder = files("skimage").joinpath("data")
        originals = [Image.open(io.BytesIO(folder.joinpath(name).read_bytes())).convert("RGB") for name in SAMPLES]
        origin = f"cut from {len(originals)} photographs of scikit-image"
    except (ImportError, FileNotFoundError):
        originals = [Image.fromarray(pixels) for pixels in shapes("test").images[:count]]
        origin = "enlarged from the embedded images: install scikit-image for photographs"
    draw = random.Random(0)
    jpegs = []
    for i in range(count):
        image = originals[i % len(originals)]
        width = draw.uniform(0.75, 1) * min(image.width, image.height * WIDTH / HEIGHT)
        height = width * HEIGHT / WIDTH
        left, top = draw.uniform(0, image.width - width), draw.uniform(0, image.height - height)
        box = (left, top, left + width, top + height)
        buffer = io.BytesIO()
        image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box).save(buffer, "JPEG", quality=QUALITY)
        jpegs.append(buffer.getvalue())
    return jpegs, f"{count} JPEGs of {WIDTH} × {HEIGHT}, quality {QUALITY}, {origin}"


class Held(Source):
    """A source of images held in memory, encoded or decoded."""

    name, fingerprint = "held", ""

    def __init__(self, images: list[Stored]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, index: int) -> Stored:
        """One image as it is held."""
        return self.images[index]

    def place(self, index: int) -> str:
        """Its number."""
        return str(index)


class PillowBlur:
    """Gaussian blur of a random width."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Blur one image."""
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def torchvision_pipeline(kind: ViewKind) -> Callable[[Image.Image], Tensor]:
    """One view as torchvision composes it."""
    steps: list[Any] = [
        T.RandomResizedCrop(kind.size, scale=kind.scale, interpolation=T.InterpolationMode.BICUBIC),
        T.RandomHorizontalFlip(kind.flip),
        T.RandomApply([T.ColorJitter(*kind.strength)], p=kind.jitter),
        T.RandomGrayscale(p=kind.grey),
    ]
    if kind.blur:
        steps.append(T.RandomApply([PillowBlur()], p=kind.blur))
    if kind.solarise:
        steps.append(T.RandomSolarize(128, p=kind.solarise))
    pipeline: Callable[[Image.Image], Tensor] = T.Compose(
        [*steps, T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    return pipeline


class Peer(Dataset[list[Tensor]]):
    """Views by torchvision on Pillow; images are bytes of files, or decoded before."""

    def __init__(self, images: list[Stored], kinds: list[ViewKind], *, decoded: bool) -> None:
        self.images = [Image.fromarray(decode(image, "")) for image in images] if decoded else images
        self.pipelines = [torchvision_pipeline(kind) for kind in kinds]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        held = self.images[index]
        if isinstance(held, np.ndarray):
            image = Image.fromarray(held)
        else:
            image = Image.open(io.BytesIO(held)).convert("RGB") if isinstance(held, bytes) else held
        return [pipeline(image) for pipeline in self.pipelines]


def their_batches(images: list[Stored], config: Config, *, decoded: bool) -> Callable[[int], Iterator[list[Tensor]]]:
    """Normalised batches of torchvision on Pillow."""
    peer = Peer(images, view_kinds(config), decoded=decoded)
    loader = DataLoader(peer, config.batch_size, shuffle=True, drop_last=True, num_workers=0)
    return lambda _epoch: iter(loader)


def our_batches(loader: Loader) -> Callable[[int], Iterator[list[Tensor]]]:
    """Normalised batches as the training loop sees them."""

    def batches(epoch: int) -> Iterator[list[Tensor]]:
        steps = loader.steps_per_epoch
        for batch in loader.batches(epoch * steps, (epoch + 1) * steps):
            yield [normalise(view, CPU, channels_last=True) for view in batch.views]

    return batches


def images_per_second(batches: Iterator[list[Tensor]]) -> float:
    """How many images pass a second of the processor."""
    start, count = time.process_time(), 0
    for views in batches:
        count += len(views[0])
    return count / (time.process_time() - start)


def compare(
    ours: Callable[[int], Iterator[list[Tensor]]], theirs: Callable[[int], Iterator[list[Tensor]]], rounds: int
) -> tuple[float, float]:
    """Best images/s of either side, measured in turns."""
    best = [0.0, 0.0]
    for epoch in range(rounds):
        for side, batches in enumerate((ours, theirs)):
            best[side] = max(best[side], images_per_second(batches(epoch)))
    return best[0], best[1]


def photo_measures(jpegs: list[bytes], rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """(measure, target, ours, theirs) for photographs, with and without decoding."""
    pixels: list[Pixels] = [decode(jpeg, "") for jpeg in jpegs]
    for decoded, target in ((False, 3.5), (True, 4.5)):
        stored: list[Stored] = [*pixels] if decoded else [*jpegs]
        for local in (0, 6):
            config = Config(local_views=local, batch_size=min(32, len(jpegs)), workers=0)
            ours = our_batches(PhotoLoader(Held(stored), config))
            name = f"2 × {config.global_size}" + (f" + {local} × {config.local_size}" if local else "")
            name += ", without decoding" if decoded else ", with decoding"
            yield name, target, *compare(ours, their_batches(stored, config, decoded=decoded), rounds)


def small_measure(count: int, rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """The same for small images held in memory."""
    images = shapes("train").images[:count]
    config = Config(**{**read_recipe("cifar10-cpu"), "batch_size": 256})
    ours = our_batches(SmallImageLoader(ArraySource(images), config))
    theirs = their_batches([*images], config, decoded=False)
    yield "2 × 32, small images", 10.0, *compare(ours, theirs, rounds)


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="few images, two rounds")
    parser.add_argument("--photos", type=Path, help="a folder of photographs; default: made here")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds, count = (2, 32) if arguments.quick else (arguments.rounds, 96)
    if arguments.photos:
        source = FolderSource(arguments.photos)
        jpegs = [file for i in range(min(count, len(source))) if isinstance(file := source.fetch(i), bytes)]
        origin = f"{len(jpegs)} files of {arguments.photos}"
    else:
        jpegs, origin = stored_photographs(count)
    print(f"photographs: {origin}; one thread, best of {rounds} rounds, images/s\n")
    print("| views | torchvision on Pillow | ours | ratio | target |\n| --- | --- | --- | --- | --- |")
    results = {}
    for name, target, ours, theirs in chain(photo_measures(jpegs, rounds), small_measure(16 * count, rounds)):
        ratio = ours / theirs
        print(f"| {name} | {theirs:.0f} | {ours:.0f} | {ratio:.2f} | ≥ {target} |", flush=True)
        results[name] = judged(ratio, target, at_least=True)
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
