"""`carp cluster`: assign every image to a cluster, and show the clusters."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.console.progress import Display
from carp.encoders.load import load_encoder
from carp.encoders.take_features import images_and_features
from carp.errors import ConfigError, DataError, MissingExtraError
from carp.exploration.cluster_count import CRITERION, ClusterCount, choose_count
from carp.exploration.cluster_names import cluster_names
from carp.exploration.clusters import Clusters, assign_to, cluster_features
from carp.exploration.link_folders import check_files, write_link_folders
from carp.features.feature_options import ENCODER, PROJECTOR, FeatureOptions, Precision
from carp.features.store import Store
from carp.features.stored_images import StoredImages
from carp.features.tabular import require_pyarrow, write_columns
from carp.files.atomic import write_atomic
from carp.files.outputs import check_output_folder
from carp.images.source import Openable
from carp.images.views.interpolation import Interpolation
from carp.report.pages.clusters_page import ClusteredImages, write_clusters_page
from carp.runs.epoch_argument import at_epoch
from carp.similarity.faiss_library import load_faiss

TABLE, PARQUET, SUMMARY, PAGE = "clusters.csv", "clusters.parquet", "clusters.json", "clusters.html"
FEATURES, FOLDERS = "features", "folders"  # sub-folders
AUTO, PROTOTYPES = "auto", "prototypes"


@dataclass(frozen=True)
class Clustered:
    """What `cluster` found and wrote.

    Attributes:
        folder: Where the files are.
        places: Every image.
        clusters: Its cluster, counted from 0, the largest first.
        certainty: How clearly that is the nearest: 1 at the centre of the cluster, 0 halfway between two.
        names: What every cluster is called.
        sizes: The number of images in every cluster.
        method: How the clusters were found, and how many there are.
        notes: What is missing, and why.
    """

    folder: Path
    places: list[str]
    clusters: NDArray[np.int64]
    certainty: NDArray[np.float32]
    names: list[str]
    sizes: list[int]
    method: str
    notes: tuple[str, ...]


def cluster(
    data: Openable,
    model: str | Path | None = None,
    *,
    clusters: int | str = AUTO,
    out: str | Path = "clusters",
    folders: bool = False,
    seed: int = 0,
    features: str | Path | None = None,
    branch: str = "teacher",
    epoch: int | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Clustered:
    """Assign every image to a cluster, and write a table and a page with the images of every cluster.

    Args:
        data: A folder of images or any other source (docs/data.md).
        model: A run folder, `RUN@25`, or weights: FILE or METHOD:FILE. None if `features` are stored already.
        clusters: The number of clusters; `auto` chooses it from the images; `prototypes` uses those of the run.
        out: Folder for clusters.csv, clusters.parquet, clusters.json, clusters.html, and the features unless
            `features` is given.
        folders: Also write a folder of links per cluster. No image is copied or moved.
        seed: Seed of k-means.
        features: Folder of the features of these images; they are extracted into it if it has none yet.
        branch: Encoder of a run: `teacher` or `student`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        interpolation: How images are resized: `bicubic` or `bilinear`. None is bicubic.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images per batch.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show no progress.

    Returns:
        The cluster of every image with its certainty, and the names of the clusters.
    """
    wanted = _wanted(clusters)
    model = at_epoch(model, epoch)
    if wanted == PROTOTYPES:
        if model is None:
            raise ConfigError("--clusters prototypes needs a run, but no model was given. Give --model RUN.")
        layer = PROJECTOR
    options = FeatureOptions(
        layer=layer,
        size=size,
        resize=resize,
        interpolation=interpolation,
        precision=precision,
        batch_size=batch_size,
        root=root,
        download=download,
        device=device,
    )
    load_faiss("clustering")  # before minutes of encoding
    folder, display = Path(out), Display(quiet=quiet)
    check_output_folder(folder)
    stored = Path(features) if features is not None else folder / FEATURES
    source, store = images_and_features(data, model, stored, branch=branch, options=options, display=display)
    places = list(store.places())
    if folders:
        check_files(places)
    found, count, method = _found(wanted, store, model, branch, options, seed, display)
    labels = None if store.labels is None or store.labels.ndim > 1 else np.asarray(store.labels)
    suggested = cluster_names(found.own, places, labels, store.classes)
    names = [f"{number}: {name}" if name else f"cluster {number}" for number, name in enumerate(suggested, start=1)]
    notes = _write(folder, found, names, places, labels, store.classes, method, count)
    images = StoredImages(store, source)
    shown = ClusteredImages(source.name, found, names, places, images, store.features, labels, store.classes, count)
    write_clusters_page(folder / PAGE, shown, [method, *notes], display)
    if folders:
        write_link_folders(folder / FOLDERS, places, [names[own] for own in found.own.tolist()])
    return Clustered(folder, places, found.own, found.certainty, names, found.sizes.tolist(), method, tuple(notes))


def _wanted(given: int | str) -> int | str:
    """The number of clusters, `auto` or `prototypes`."""
    if given in (AUTO, PROTOTYPES):
        return given
    try:
        number = int(given)
    except (TypeError, ValueError):
        number = 0
    if number < 2:
        raise ConfigError(f"clusters must be a number of at least 2, auto or prototypes, received {given}.")
    return number


def _found(
    wanted: int | str,
    store: Store,
    model: str | Path | None,
    branch: str,
    options: FeatureOptions,
    seed: int,
    display: Display,
) -> tuple[Clusters, ClusterCount | None, str]:
    """The clusters, how their number was chosen, and both in words."""
    vectors = store.features
    if wanted == PROTOTYPES:
        assert model is not None
        prototypes = load_encoder(model, branch, options).prototypes
        found = assign_to(vectors, prototypes)
        return found, None, f"The {len(found):,} of {len(prototypes):,} prototypes that are nearest to some image."
    count = None
    if wanted == AUTO:
        with display.counting("choosing the number of clusters", None) as progress:
            count = choose_count(vectors, seed=seed, progress=progress)
    k = count.chosen if count else int(wanted)
    if k >= len(vectors):
        raise DataError(
            f"{k:,} clusters need more than {k:,} images, received {len(vectors):,}. Lower --clusters, or add images."
        )
    found = cluster_features(vectors, k, seed=seed)
    how = f" The number was chosen by {CRITERION}: {count.silhouette[k]:.2f}." if count else ""
    return found, count, f"Spherical k-means on features of unit length.{how}"


def _write(
    folder: Path,
    found: Clusters,
    names: list[str],
    places: list[str],
    labels: NDArray[np.int64] | None,
    classes: tuple[str, ...],
    method: str,
    count: ClusterCount | None,
) -> list[str]:
    """Write the tables and the summary; return notes about what is missing."""
    columns = {
        "image": places,
        "cluster": (found.own + 1).tolist(),
        "name": [names[own] for own in found.own.tolist()],
        "certainty": [round(value, 4) for value in found.certainty.tolist()],
        "similarity": [round(value, 4) for value in found.similarity.tolist()],
    }
    if labels is not None:
        columns["label"] = [classes[label] if 0 <= label < len(classes) else "" for label in labels.tolist()]
    summary = {
        "schema": 1,
        "method": method,
        "images": len(places),
        "silhouette": None if count is None else {str(k): round(value, 4) for k, value in count.silhouette.items()},
        "clusters": [
            {"cluster": number + 1, "name": name, "images": int(size), "tightness": round(float(tight), 4)}
            for number, (name, size, tight) in enumerate(zip(names, found.sizes, found.tightness, strict=True))
        ],
    }
    notes = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_columns(folder / TABLE, columns)
        write_atomic(folder / SUMMARY, json.dumps(summary, indent=1))
        try:
            require_pyarrow(PARQUET)
            write_columns(folder / PARQUET, columns)
        except MissingExtraError as error:
            notes.append(f"{PARQUET} was not written: {error}")
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}. Give another --out.") from error
    return notes
