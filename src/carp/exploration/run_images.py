"""What a run has made of images: their map, prototypes, neighbours and confusions, and the same before training.

Shapes: M images on the map, F features, Q queries, C classes.
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from carp.console.progress import Display
from carp.encoders.assignments import partitions
from carp.encoders.load import load_encoder
from carp.evaluation.nearest_neighbours import knn, knn_leave_one_out, nearest
from carp.evaluation.workspace import Workspace
from carp.exploration.layout import Layout, lay_out, spread_rows
from carp.exploration.prototype_images import PrototypeImages, embeddings_of, prototype_images
from carp.features.extract import Features
from carp.features.feature_options import PROJECTOR, FeatureOptions
from carp.features.store import is_store
from carp.features.stored_images import StoredImages
from carp.images.source import Source
from carp.images.sources.subset import Subset, at_random
from carp.random import Purpose, key
from carp.runs.run_folder import Run

_NEIGHBOURS = 20  # that vote
_SHOWN, _QUERIES = 5, 8
_COMPARED = 1000  # images that the untrained encoder and raw pixels are measured on
_PARTITIONS = 4


@dataclass(frozen=True)
class Neighbourhood:
    """Nearest images of a few queries: rows [Q, n] and their cosines."""

    rows: NDArray[np.int64]
    cosines: Features


@dataclass(frozen=True)
class RunImages:
    """Everything that a report shows about images; rows count the images of the map."""

    images: StoredImages
    store_rows: NDArray[np.int64]
    """The row of every image in its feature store, [M]."""
    places: list[str]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    layout: Layout
    prototypes: PrototypeImages
    block_size: int
    queries: NDArray[np.int64]
    after: Neighbourhood
    before: Neighbourhood
    """Of the encoder that the run started from, among the images that it was compared on."""
    predicted: NDArray[np.int64] | None
    """The class of every image by its neighbours, [M]; None without labels."""
    accuracies: dict[str, float]
    """k-NN accuracy by encoder, on the images that all were compared on; empty without labels."""
    compared: int
    """How many images that are."""


def run_images(
    run: Run, source: Source, *, limit: int, points: int, options: FeatureOptions, display: Display
) -> RunImages:
    """Embed images by the teacher of a run, unless that has been done, and look at them in every way.

    Args:
        run: The run, at its newest checkpoint or at the end of an epoch.
        source: The images.
        limit: Embed at most this many images, chosen at random; stored features of all images are used instead.
        points: The largest number of images on the map.
        options: Of these, `device`, `precision` and `batch_size`.
        display: Shows the progress.
    """
    model = run.folder if run.epoch is None else f"{run.folder}@{run.epoch}"
    encoder = load_encoder(model, "teacher", options)
    work = Workspace(model, "teacher", encoder, options, run.folder, display)
    if not is_store(work.store_folder(encoder.origin(source, options.precision))):
        source = _sample(source, limit, "report")
    store, _ = work.take_any(source)
    chosen = spread_rows(len(store.features), points)
    features = np.ascontiguousarray(store.features[chosen])
    labels = None if store.labels is None or store.labels.ndim > 1 else np.asarray(store.labels[chosen])
    if labels is not None and (labels.min() < 0 or len(np.unique(labels)) < 2):
        labels = None
    places = store.places_of(set(chosen.tolist()))
    compared = _spread(len(chosen), _COMPARED)
    some = Subset(source, store.image_of_row()[chosen[compared]])
    some.fingerprint = _fingerprint(source, f"compared {len(chosen)}")
    untrained, raw_pixels = (
        replace(work, branch=branch, encoder=load_encoder(model, branch, options)).take_any(some)
        for branch in ("untrained", "raw pixels")
    )
    queries = compared[_spread(len(compared), _QUERIES)]
    before = _neighbourhood(untrained[0].features, np.searchsorted(compared, queries))
    with display.counting("laying out the map", None) as progress:
        layout = lay_out(features, progress=progress)
    branch = load_encoder(model, "teacher", options.model_copy(update={"layer": PROJECTOR}))
    return RunImages(
        images=StoredImages(store, source),
        store_rows=chosen,
        places=[places[row] for row in chosen.tolist()],
        labels=labels,
        classes=store.classes,
        layout=layout,
        prototypes=prototype_images(
            embeddings_of(branch, features), branch.prototypes, partitions(run.config, run.config.seed, _PARTITIONS)
        ),
        block_size=run.config.block_size,
        queries=queries,
        after=_neighbourhood(features, queries),
        before=Neighbourhood(compared[before.rows], before.cosines),
        predicted=_predicted(features, labels),
        accuracies=_accuracies(
            {
                "raw pixels": raw_pixels[0].features,
                "untrained encoder": untrained[0].features,
                "this run": features[compared],
            },
            None if labels is None else labels[compared],
        ),
        compared=len(compared),
    )


def _sample(source: Source, limit: int, purpose: str) -> Source:
    if len(source) <= limit:
        return source
    sample = at_random(source, limit, seed=0)
    sample.fingerprint = _fingerprint(source, f"{purpose} {limit}")
    return sample


def _fingerprint(source: Source, which: str) -> str:
    """Of some images of a source, so that their features are not mistaken for those of others."""
    return hashlib.sha256(f"{source.fingerprint} {which}".encode()).hexdigest()


def _spread(count: int, most: int) -> NDArray[np.int64]:
    order = np.argsort(key(0, Purpose.BANK, np.arange(count)), kind="stable")
    return np.sort(order[:most])


def _neighbourhood(features: Features, queries: NDArray[np.int64]) -> Neighbourhood:
    """The nearest other images of a few."""
    count = min(_SHOWN, len(features) - 1)
    cosines, rows = nearest(features, np.ascontiguousarray(features[queries]), count + 1)
    others = rows != queries[:, None]
    others[others.all(axis=1), -1] = False  # equal images may come before the query itself
    shape = (len(queries), count)
    return Neighbourhood(rows[others].reshape(shape), cosines[others].reshape(shape))


def _predicted(features: Features, labels: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    if labels is None:
        return None
    k = max(1, min(_NEIGHBOURS, len(features) - 1))
    return knn(features, labels, None, None, k=[k], predict=True).predicted[f"@{k}"].classes


def _accuracies(encoders: dict[str, Features], labels: NDArray[np.int64] | None) -> dict[str, float]:
    if labels is None:
        return {}
    k = max(1, min(_NEIGHBOURS, len(labels) - 1))
    return {name: knn_leave_one_out(np.asarray(found), labels, k=k) for name, found in encoders.items()}


def confused(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many images of each class (rows) were taken for each class (columns), [C, C]."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts
