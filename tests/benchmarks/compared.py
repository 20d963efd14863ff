"""Small images of four colours, and methods and comparisons that train on them in a moment."""

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compare.comparison import Comparison
from benchmarks.compare.effort import Effort
from benchmarks.compare.images import ComparedImages
from benchmarks.compare.methods import find_method
from benchmarks.compare.training import MethodTraining
from PIL import Image

from carp.images.sources.array import ArraySource
from carp.studies.job_result import JobResult, read_job_result
from carp.studies.points import Job
from tests.helpers import TINY

SIZE, BATCH = 16, 16
COMMON: dict[str, Any] = {
    **{key: TINY[key] for key in ("encoder", "encoder_options", "stem_stride", "blur")},
    "global_size": SIZE,
    "epochs": 2,
    "batch_size": BATCH,
    "precision": "fp32",
    "seed": 0,
}
NAMES = ["simclr", "byol"]
SMALL = {"projector_hidden": 32, "num_outputs": 32, "num_codes": 8, "queue": 64, "queue_batches": 1}


def coloured(count: int, seed: int = 0) -> ArraySource:
    """Images of four classes, each with its own colour."""
    noise = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    base = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200], [200, 200, 30]])[labels]
    pixels = np.clip(base[:, None, None] + noise.integers(-30, 30, (count, SIZE, SIZE, 3)), 0, 255)
    return ArraySource(pixels.astype(np.uint8), labels.astype(np.int64), ("0", "1", "2", "3"), name="colours")


def training(name: str, source: ArraySource, *, epochs: int = 2, seed: int = 0, small: bool = True) -> MethodTraining:
    """The published setting of a method, with narrow layers unless `small` is false."""
    method = find_method(name)
    trial = Effort().trial(name, 0).point.settings
    if small:
        trial |= {key: value for key, value in SMALL.items() if key in trial}
    config = method.configure({**COMMON, "epochs": epochs, "seed": seed}, trial, num_images=len(source))
    if small:
        config = config.model_copy(update={"num_prototypes": 64, "block_size": 8, "embedding": 16})
    return MethodTraining(method, trial, source, config)


class Watched:
    """Test images that note what is done when they are first looked at."""

    def __init__(self, source: ArraySource, folder: Path) -> None:
        self.source, self.folder, self.done = source, folder, list[str]()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        self.done = self.done or [path.parent.name for path in self.folder.glob("*/job.json")]
        assert self.source.labels is not None
        return Image.fromarray(self.source.images[index]), int(self.source.labels[index])


class NeverOpened:
    def __len__(self) -> int:
        raise AssertionError("the test images were opened")

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        raise AssertionError("the test images were opened")


def comparison(folder: Path, test: Any, **effort: Any) -> Comparison:
    images = ComparedImages(coloured(5 * BATCH), test, SIZE, held_out=BATCH)
    settings = {key: COMMON[key] for key in COMMON if key != "seed"} | {"epochs": 1}
    return Comparison(folder, images, settings, Effort(**{"trials": 2, "seeds": (1, 2), **effort}))


def copy_of(out: Path, to: Path) -> Path:
    for path in out.rglob("*.json"):
        (to / path.relative_to(out)).parent.mkdir(parents=True, exist_ok=True)
        (to / path.relative_to(out)).write_text(path.read_text())
    return to


def stored(out: Path, job: Job) -> JobResult:
    found = read_job_result(out / "colours" / job.name)
    assert found is not None
    return found
