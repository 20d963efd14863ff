"""Retrieval and copy detection: protocols that look at images in their own sizes, and at their names.

Each takes `Inputs` (an encoder, a place for features) and the images, and returns a result with the origin of the
features that it was measured on.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from carp.commands.labelled import FEATURES, Inputs
from carp.encoders.frozen_encoder import Encoder
from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Features
from carp.evaluation.ranked.copies import DEPTH, SIDE, copy_detection, read_copies
from carp.evaluation.ranked.ground_truth import SameClass, read_ground_truth, read_relevance
from carp.evaluation.ranked.ranking import Judged
from carp.evaluation.ranked.retrieval import KS, Truth, retrieval
from carp.evaluation.ranked.whitening import Whitening, fit_whitening
from carp.evaluation.result import Result
from carp.features.extract import FeatureBatch
from carp.features.filling import fill_store
from carp.features.scales import ONE_SCALE, THREE_SCALES, Boxes, extract_scales
from carp.features.store import Origin
from carp.images.labels import single_labels, unlabelled
from carp.images.source import Openable, Source
from carp.images.sources.paper.paper_datasets import COPYDAYS_SIZES, RETRIEVAL_SIZES
from carp.images.sources.subset import Subset, by_name, names_of

_AT_A_TIME = 64


def retrieve(
    inputs: Inputs,
    data: Openable,
    *,
    truth: str | Path | None = None,
    queries: str | Path | None = None,
    multi_scale: bool = False,
    max_side: int | None = None,
    boxes: bool | None = True,
    whiten: str | Path | None = None,
    k: Sequence[int] = KS,
) -> tuple[Result, Origin]:
    """Rank the images of `data` for every query.

    Args:
        inputs: The encoder, and where its features are kept.
        data: The images that are searched; with a published ground truth also the queries.
        truth: A published ground truth (`gnd_roxford5k.pkl`, or the same as JSON); or a relevance file: .csv, with
            `queries` also .json. Without it images of the same class are to be found.
        queries: Images that ask. Without them every image of `data` asks for the others.
        multi_scale: Three scales instead of one.
        max_side: Larger images are made smaller; None leaves them as they are.
        boxes: Cut published queries to their boxes; false or None leaves them whole.
        whiten: Other images to learn a whitening on.
        k: Depths at which the precision is taken.
    """
    _encoder(inputs)
    source = inputs.images(data)
    scales = THREE_SCALES if multi_scale else ONE_SCALE
    extract = partial(_features, inputs, scales=scales, max_side=max_side)
    if truth is not None and queries is None and Path(truth).suffix.lower() != ".csv":
        published, named_by = read_ground_truth(Path(truth)), str(truth)
        asking: Source = by_name(source, published.queries, named_by=named_by)
        source = by_name(source, published.database, named_by=named_by)
        levels: Truth = published.levels()
        cut = published.boxes if boxes else None
        sizes = len(published.queries), len(published.database)
        name = next((name for name, known in RETRIEVAL_SIZES.items() if known == sizes), None)
    else:
        asking, cut = source if queries is None else inputs.images(queries), None
        levels, name = {"": _judged(asking, source, truth)}, None
    database, origin = extract(source)
    asked = database if asking is source else extract(asking, boxes=cut)[0]
    result = retrieval(asked, database, levels, ks=k, whitening=_learned(inputs, whiten, extract))
    settings = {"multi_scale": multi_scale, "max_side": max_side, "boxes": cut is not None}
    return replace(result, settings={**result.settings, **settings}, data=_named(name)), origin


def find_copies(
    inputs: Inputs,
    data: Openable,
    *,
    distractors: str | Path | None = None,
    whiten: str | Path | None = None,
    side: int = SIDE,
    depth: int | None = DEPTH,
) -> tuple[Result, Origin]:
    """Find the original of every altered copy.

    Args:
        inputs: The encoder, and where its features are kept.
        data: Copydays, or a folder that `carp data attack` made.
        distractors: Images that are no originals and are searched, too.
        whiten: Other images to learn a whitening on.
        side: Images are stretched to a square of this side.
        depth: How many results count; None is all.
    """
    if not isinstance(data, str | Path):
        raise ConfigError("copies takes a folder: Copydays, or one that `carp data attack` made.")
    _encoder(inputs)
    if side < 1:
        raise ConfigError(f"copies: side must be at least 1 pixel, received {side}.")
    found, source = read_copies(Path(data)), inputs.images(data)
    extract = partial(_features, inputs, square=side)
    originals, origin = extract(by_name(source, found.originals, named_by=str(data)))
    copies, _ = extract(by_name(source, [copy.name for copy in found.copies], named_by=str(data)))
    others = None if distractors is None else extract(inputs.images(distractors))[0]
    whitening = _learned(inputs, whiten, extract)
    result = copy_detection(copies, originals, found, distractors=others, whitening=whitening, depth=depth)
    sizes = len(found.originals), sum(copy.attack == "strong" for copy in found.copies)
    name = "copydays" if sizes == COPYDAYS_SIZES else None
    return replace(result, settings={**result.settings, "side": side}, data=_named(name)), origin


def _named(name: str | None) -> dict[str, str]:
    """What a result says of data that are a published set by their sizes."""
    return {} if name is None else {"name": name}


def _judged(asking: Source, source: Source, relevance: str | Path | None) -> Sequence[Judged]:
    """What counts for every query of a person's own data."""
    alone = asking is source
    if relevance is not None:
        return read_relevance(Path(relevance), names_of(asking), names_of(source), leave_self_out=alone)
    for part in (asking, source):
        if part.labels is None:
            raise DataError(
                f"{str(unlabelled(part)).removesuffix('.')}; or say with --truth FILE.csv which images belong to which "
                "query (docs/protocols.md)."
            )
    labels = single_labels(asking, "retrieval without a relevance file"), single_labels(source, "retrieval")
    if asking.classes != source.classes:
        raise DataError(f"{asking.name} and {source.name} have different classes: give a relevance file with truth=.")
    return SameClass(*labels, leave_self_out=alone)


def _learned(inputs: Inputs, data: str | Path | None, extract: "partial[tuple[Features, Origin]]") -> Whitening | None:
    return None if data is None else fit_whitening(extract(inputs.images(data))[0])


def _features(
    inputs: Inputs,
    source: Source,
    *,
    scales: Sequence[float] = ONE_SCALE,
    max_side: int | None = None,
    square: int | None = None,
    boxes: Boxes | None = None,
) -> tuple[Features, Origin]:
    """Features of images in their own sizes, found in a store or extracted now."""
    encoder = _encoder(inputs)
    transform = {
        "scales": list(scales),
        "max_side": max_side,
        "square": square,
        "boxes": None if boxes is None else _digest(boxes),
        "images": _digest(source.indices) if isinstance(source, Subset) else "all",
    }
    origin = replace(encoder.origin(source), transform=transform)
    size = _AT_A_TIME if boxes is None else len(source)  # boxes go with all images, so there is one batch

    def encode(rest: Source) -> Iterator[FeatureBatch]:
        for start in range(0, len(rest), size):
            part = Subset(rest, np.arange(start, min(start + size, len(rest))))
            yield FeatureBatch(_encode(encoder, part, scales, max_side, square, boxes), list(range(len(part))), [])

    what = ", ".join(word for word in (encoder.branch, source.name) if word)
    with inputs.display.counting(what, len(source)) as progress:
        folder = inputs.folder / FEATURES / origin.key()[:16]
        return fill_store(folder, origin, source, encode, batch_size=size, progress=progress).features, origin


def _encoder(inputs: Inputs) -> Encoder:
    if inputs.encoder is None:
        raise ConfigError("this protocol looks at images in their own sizes: give a run folder or weights.")
    return inputs.encoder


def _encode(
    encoder: Encoder,
    source: Source,
    scales: Sequence[float],
    max_side: int | None,
    square: int | None,
    boxes: Boxes | None,
) -> Features:
    return extract_scales(
        encoder.module, source, device=encoder.device, scales=scales, boxes=boxes, max_side=max_side, square=square
    )


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
