"""How good are encoders for these images, without training: view retrieval, and k-NN where there are labels.

View retrieval (`evaluation/during_training/label_free.py`) is the share of random views of an image that find another
view of it among all images of the sample, so it depends on the size of the sample: only values of one table can be
compared.

Shapes: M images of the sample, V views.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from carp.advice.resampling import Interval, interval
from carp.compute.device import choose_device
from carp.config import Config
from carp.encoders.load import load_encoder
from carp.evaluation.during_training.label_free import VIEWS, features_of_views, view_hits
from carp.evaluation.nearest_neighbours import knn
from carp.features.encoding_speed import time_batches
from carp.features.extract import RAW_PIXELS_SIDE, Extracted, extract, feature_batches
from carp.features.feature_options import FeatureOptions
from carp.images.source import Source
from carp.images.sources.subset import Subset, at_random
from carp.images.views.interpolation import Interpolation
from carp.model.encoder import patch_size
from carp.training.loop import build_model

MODEL, BASELINE, PILOT = "model", "baseline", "pilot"
RAW_PIXELS, UNTRAINED = "raw pixels", "untrained"
_MOST_VIEWED, _MOST_LABELLED = 400, 2000  # images
_FEWEST_VIEWED, _FEWEST_LABELLED = 48, 96
_SECONDS = 120.0  # for all probes together, approximately
_TIMED = 8  # images that show how long a pass takes
_NEIGHBOURS = 20
_STRIDE = 32  # of most convolutional networks

Progress = Callable[[int, int], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """An encoder to measure, and the images that it takes."""

    name: str
    kind: str
    module: nn.Module
    size: int
    resized: bool = False
    """Whether this is another size than that of the weights."""
    interpolation: Interpolation = "bicubic"


@dataclass(frozen=True)
class Probe:
    """What was measured for an encoder."""

    name: str
    kind: str
    size: int
    resized: bool
    """Whether this is another size than that of the weights."""
    views: Interval
    knn: Interval | None
    seconds: float
    """To encode one image here."""
    hits_M: Values = field(repr=False, compare=False)
    """For every image, the share of its views that find another one."""
    right_M: Values | None = field(repr=False, compare=False)
    """Whether an image's neighbours have its class: 1 or 0."""

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements as plain values, for JSON."""
        kept = {"name": self.name, "kind": self.kind, "size": self.size, "seconds_per_image": self.seconds}
        return {**kept, "views": vars(self.views), "knn": None if self.knn is None else vars(self.knn)}


@dataclass(frozen=True)
class ProbeImages:
    """The images that all encoders are measured on."""

    viewed: Subset
    queries: Subset | None
    """Labelled images; None without labels."""
    bank: Subset | None
    """The images whose labels vote; None if they are the other queries."""
    used: NDArray[np.int64]
    """The numbers of all of them in the source, on which no pilot trains."""


def load_model(model: str | Path, size: int | None, device: str) -> Candidate:
    """Load a run or weights; `size` is that of the weights if it is None."""
    encoder = load_encoder(model, "teacher", FeatureOptions(size=size, device=device))
    return Candidate(str(model), MODEL, encoder.module, encoder.size, size is not None, encoder.interpolation)


def fitted(candidate: Candidate, side: int) -> Candidate:
    """Enlarge images of this shorter side to no more than about twice that: more costs time and adds nothing.

    Networks with patches keep their size.
    """
    size = -(-2 * max(side, 1) // _STRIDE) * _STRIDE
    if size >= candidate.size or any(patch_size(part) for part in candidate.module.modules()):
        return candidate
    return replace(candidate, size=size, resized=True)


def baselines(config: Config) -> list[Candidate]:
    """Return raw pixels, and the encoder that a run from scratch would start with."""
    device, size = choose_device(config.device), config.global_size
    untrained = build_model(config, device).student.encoder
    side = min(size, RAW_PIXELS_SIDE)
    return [
        Candidate(RAW_PIXELS, BASELINE, nn.Flatten().to(device), side),
        Candidate(UNTRAINED, BASELINE, untrained, size, interpolation=config.interpolation),
    ]


def choose_images(
    source: Source, validation: Source | None, candidates: Sequence[Candidate], device: torch.device, *, spare: bool
) -> ProbeImages:
    """Choose random images: as many as all candidates can be measured on in about two minutes.

    With `spare`, at most a third of the images are used, so that a pilot can train on the others.
    """
    each = sum(seconds_per_image(candidate, source, device) for candidate in candidates)
    labelled = validation if validation is not None else source if _has_classes(source) else None
    passes = _SECONDS / max(each, 1e-9)
    for_views = passes / 2 if labelled is not None else passes
    most = max(2, len(source) // 3) if spare else len(source)
    views = min(most, _between(_FEWEST_VIEWED, for_views / (VIEWS + 1), _MOST_VIEWED))
    viewed = at_random(source, views, seed=0)
    if labelled is None:
        return ProbeImages(viewed, None, None, viewed.indices)
    shared = validation is not None and validation.classes == source.classes
    many = _between(_FEWEST_LABELLED, passes / 2 / (2 if shared else 1), _MOST_LABELLED)
    if validation is None:
        queries = at_random(source, min(most, many), seed=0)
        return ProbeImages(viewed, queries, None, np.union1d(viewed.indices, queries.indices))
    bank = at_random(source, many, seed=0) if shared else None  # a pilot may train on it, as on any image with a vote
    return ProbeImages(viewed, at_random(validation, many, seed=0), bank, viewed.indices)


def probe(candidate: Candidate, images: ProbeImages, device: torch.device, progress: Progress) -> Probe:
    """Measure an encoder."""
    start = time.monotonic()
    _, views_VMF = features_of_views(
        candidate.module, images.viewed, size=candidate.size, device=device, interpolation=candidate.interpolation
    )
    seconds = (time.monotonic() - start) / max(1, (VIEWS + 1) * len(images.viewed))
    progress(1, 2)
    hits_M = view_hits(np.nan_to_num(views_VMF)).mean(dim=0).numpy()
    right_M = None if images.queries is None else _right(candidate, images.queries, images.bank, device)
    progress(2, 2)
    return Probe(
        candidate.name,
        candidate.kind,
        candidate.size,
        candidate.resized,
        interval(hits_M),
        None if right_M is None else interval(right_M),
        seconds,
        hits_M,
        right_M,
    )


def encode(candidate: Candidate, source: Source, device: torch.device) -> Extracted:
    """Return the features of images; those that cannot be read are left out."""
    return extract(
        candidate.module,
        source,
        size=candidate.size,
        device=device,
        may_be_empty=True,
        interpolation=candidate.interpolation,
    )


def seconds_per_image(candidate: Candidate, source: Source, device: torch.device) -> float:
    """Time a few images."""
    batches = feature_batches(
        candidate.module,
        at_random(source, 2 * _TIMED, seed=2),
        size=candidate.size,
        device=device,
        batch_size=_TIMED,
        interpolation=candidate.interpolation,
    )
    return time_batches(batches, _SECONDS)[0]


def _right(candidate: Candidate, queries: Subset, bank: Subset | None, device: torch.device) -> Values | None:
    """Whether each query is classified correctly; None if k-NN means nothing, as with a single class."""
    asked = encode(candidate, queries, device)
    truth = _labels(queries, asked)
    known = asked if bank is None else encode(candidate, bank, device)
    voters = truth if bank is None else _labels(bank, known)
    k = min(_NEIGHBOURS, len(voters) - 1)
    if k < 1 or len(np.unique(voters)) < 2:
        return None
    features = np.nan_to_num(known.features)
    if bank is None:
        found = knn(features, voters, None, None, k=[k], predict=True)
        return _as_values(found.predicted[f"@{k}"].classes == truth)
    can = np.isin(truth, voters)  # no query of another class can be right
    right = np.zeros(len(truth))
    if can.any():
        found = knn(features, voters, np.nan_to_num(asked.features[can]), truth[can], k=[k], predict=True)
        right[can] = _as_values(found.predicted[f"@{k}"].classes == truth[can])
    return right


def _labels(source: Subset, found: Extracted) -> NDArray[np.int64]:
    assert source.labels is not None
    labels: NDArray[np.int64] = source.labels[found.indices]
    return labels


def _as_values(flags: NDArray[np.bool_]) -> Values:
    return flags.astype(np.float64)


def _has_classes(source: Source) -> bool:
    return source.labels is not None and source.labels.ndim == 1 and len(np.unique(source.labels)) > 1


def _between(least: int, wanted: float, most: int) -> int:
    return max(least, min(most, int(wanted)))


def renamed(candidate: Candidate, name: str) -> Candidate:
    """Return the candidate of a pilot."""
    return replace(candidate, name=name, kind=PILOT)
