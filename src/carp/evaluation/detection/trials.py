"""Detection on VOC: fine-tune Faster R-CNN (C4) from the encoder several times, and measure average precision."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.layers import weights_hash
from carp.errors import DataError
from carp.evaluation.detection.detector import build_detector
from carp.evaluation.detection.trial import Schedule, Trial, detect
from carp.evaluation.detection.voc import Annotated, Scenes, fingerprint
from carp.evaluation.detection.voc_metric import OVERLAPS, average_precisions
from carp.evaluation.result import Result, mean_and_deviation
from carp.features.extract import Progress
from carp.files.atomic import write_atomic
from carp.images.sources.paper.split_lists import VOC_CLASSES
from carp.runs.checkpoint import list_checkpoints
from carp.runs.run_folder import locked

_STATE = 1  # version of the files below `state`; change it when the computation of a step changes
_SIZES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


def detection(
    encoder: ExportableEncoder,
    train: Sequence[Annotated],
    test: Sequence[Annotated],
    *,
    iterations: int = 24_000,
    batch_size: int = 16,
    trials: int = 5,
    lr: float = 0.02,
    lr_drops: Sequence[float] = (0.75, 11 / 12),
    warmup: int = 100,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    sizes: Sequence[int] = _SIZES,
    max_size: int = 1333,
    test_size: int = 800,
    anchor_sizes: Sequence[int] = (32, 64, 128, 256, 512),
    seed: int = 0,
    workers: int = 2,
    device: torch.device | None = None,
    state: Path | None = None,
    save_seconds: float = 300.0,
    progress: Callable[[str], Progress] = lambda _what: lambda _done, _all: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Result:
    """Fine-tune a detector on the encoder and test it, `trials` times.

    Args:
        encoder: A ResNet; its weights are copied.
        train: Images with boxes to train on.
        test: Images with boxes to test on.
        iterations: Steps per trial.
        batch_size: Images per step.
        trials: How many times to train, each time with different new layers, order and samples.
        lr: Learning rate.
        lr_drops: Shares of the iterations after which the learning rate falls to a tenth.
        warmup: Iterations of linear warm-up.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of all parameters except those of batch norm.
        sizes: The shorter side of a training image is one of these.
        max_size: The longer side is at most this.
        test_size: The shorter side of a test image.
        anchor_sizes: Sides of the squares that proposals start from.
        seed: Seed of all random choices.
        workers: Processes that decode images; 0 decodes them in the main process.
        device: Where to train; the CPU if None.
        state: A folder that keeps the state, so that the same call resumes; on a CPU, the results are the same, bit for
            bit. Only the values of finished trials are kept.
        save_seconds: Time between two saves.
        progress: Called with a description of the work; returns a function to be called with (done, all).
        warn: Called with one line if the state is damaged.

    Returns:
        `ap` (mean over overlaps of 0.5 to 0.95), `ap50` and `ap75` by VOC 2007's eleven points, as detectron2 computes
        them; `…_area` by the area under the curve.
    """
    schedule = Schedule(iterations, batch_size, lr, momentum, weight_decay, tuple(lr_drops), warmup)
    settings = {
        **asdict(schedule),
        "trials": trials,
        "seed": seed,
        "sizes": list(sizes),
        "max_size": max_size,
        "test_size": test_size,
        "anchor_sizes": list(anchor_sizes),
    }
    if not any(len(image.truth.classes) for image in train):
        raise DataError("none of the training images has a box. Give images with objects (train).")
    make = partial(
        build_detector,
        encoder,
        num_classes=len(VOC_CLASSES) + 1,
        anchor_sizes=anchor_sizes,
        max_size=max_size,
        test_size=test_size,
    )
    with torch.random.fork_rng():
        make()  # an unsuitable encoder is refused before anything is written
    made_of = [
        _STATE,
        weights_hash(encoder.module),
        encoder.mean,
        encoder.std,
        {**settings, "trials": 0},
        fingerprint(train),
        fingerprint(test),
    ]
    home = None if state is None else state / _digest(made_of)
    runs = []
    for number in range(trials):
        trial = Trial(
            number=number,
            seed=seed,
            make=make,
            schedule=schedule,
            scenes=Scenes(train, sizes=sizes, max_size=max_size, seed=seed, trial=number),
            device=device or torch.device("cpu"),
            workers=workers,
            state=None if home is None else home / f"trial-{number}",
            save_seconds=save_seconds,
            progress=progress(f"trial {number + 1} of {trials}, training"),
            warn=warn,
        )
        runs.append(_run(trial, test, progress(f"trial {number + 1} of {trials}, testing")))
    values, spread = mean_and_deviation([run["values"] for run in runs])
    details = {"trials": runs, "classes": list(VOC_CLASSES), "overlaps": list(OVERLAPS)}
    return Result(values=values, settings=settings, spread=spread, details=details)


def _run(trial: Trial, test: Sequence[Annotated], progress: Progress) -> dict[str, Any]:
    """Return the values of a trial, stored or computed now."""
    if trial.state is None:
        return _measured(trial, test, progress)
    with locked(trial.state):
        result = trial.state / "result.json"
        with suppress(OSError, ValueError, RecursionError):  # it does not exist yet, or it is damaged
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        made = _measured(trial, test, progress)
        write_atomic(result, json.dumps(made))
        for path in list_checkpoints(trial.state):  # the numbers are kept, the detector is not
            shutil.rmtree(path, ignore_errors=True)
    return made


def _measured(trial: Trial, test: Sequence[Annotated], progress: Progress) -> dict[str, Any]:
    detector = trial.trained()
    found = detect(detector, test, trial.device, progress)
    tables = average_precisions(found, [image.truth for image in test], len(VOC_CLASSES))
    if np.isnan(tables[0]).all():
        raise DataError("none of the test images has an object to find. Give other images (test).")
    values = {}
    for table, suffix in zip(tables, ("", "_area"), strict=True):
        of_overlap = np.nanmean(table[~np.isnan(table).any(axis=1)], axis=0)
        values[f"ap{suffix}"] = float(of_overlap.mean())
        for percent in (50, 75):
            values[f"ap{percent}{suffix}"] = float(of_overlap[OVERLAPS.index(percent / 100)])
    per_class = [None if np.isnan(row).any() else [round(float(ap), 6) for ap in row] for row in tables[0]]
    return {"values": values, "ap_by_class_and_overlap": per_class}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
