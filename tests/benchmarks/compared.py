"""Small images of four colours, and a method that trains on them in a moment."""

from typing import Any

import numpy as np
from benchmarks.compare.effort import Effort
from benchmarks.compare.methods import find_method
from benchmarks.compare.training import MethodTraining

from carp.images.sources.array import ArraySource
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
