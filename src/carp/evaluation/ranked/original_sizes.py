"""Features of images in their original sizes, for protocols that search."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from carp.evaluation.feature_arrays import Features
from carp.evaluation.workspace import Workspace
from carp.features.extract import FeatureBatch
from carp.features.filling import fill_store
from carp.features.scales import ONE_SCALE, Boxes, extract_scales
from carp.features.store import Origin
from carp.images.source import Source
from carp.images.sources.subset import Subset

_IMAGES_PER_BATCH = 64


def take_original_sizes(
    work: Workspace,
    source: Source,
    *,
    scales: Sequence[float] = ONE_SCALE,
    max_side: int | None = None,
    square: int | None = None,
    boxes: Boxes | None = None,
) -> tuple[Features, Origin]:
    """Find the features of images in the workspace, or extract them; see `extract_scales`."""
    encoder = work.required_encoder()
    transform = {
        "scales": list(scales),
        "max_side": max_side,
        "square": square,
        "boxes": None if boxes is None else _digest(boxes),
        **({} if max_side is None else {"rounding": "as Pillow's thumbnail"}),  # earlier versions: to the nearest
        "images": _digest(source.indices) if isinstance(source, Subset) else "all",
    }
    origin = replace(encoder.origin(source), transform=transform)
    size = _IMAGES_PER_BATCH if boxes is None else len(source)  # boxes belong to all images, so there is one batch

    def encode(rest: Source) -> Iterator[FeatureBatch]:
        for start in range(0, len(rest), size):
            part = Subset(rest, np.arange(start, min(start + size, len(rest))))
            features = extract_scales(
                encoder.module,
                part,
                device=encoder.device,
                scales=scales,
                boxes=boxes,
                max_side=max_side,
                square=square,
            )
            yield FeatureBatch(features, list(range(len(part))), [])

    what = ", ".join(word for word in (encoder.branch, source.name) if word)
    with work.display.counting(what, len(source)) as progress:
        store = fill_store(work.store_folder(origin), origin, source, encode, batch_size=size, progress=progress)
    return store.features, origin


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
