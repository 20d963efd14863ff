"""k-means as in the paper's appendix: spherical, by faiss, fitted on training features, scored on others.

Shapes: N images, F features.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from carp.errors import DataError, MissingExtraError
from carp.evaluation.feature_arrays import (
    Features,
    Labels,
    Progress,
    check_classes,
    check_pair,
    normalised,
    norms,
    silent,
)
from carp.evaluation.metrics import clustering_metrics, matched_classes, scikit_learn
from carp.evaluation.result import Predicted, Result, mean_and_deviation


def kmeans(
    train: Features,
    train_labels: Labels | None,
    test: Features,
    test_labels: Labels | None,
    *,
    scale: Literal["unit", "standard"] = "unit",
    num_clusters: int | None = None,
    iterations: int = 100,
    redos: int = 20,
    images_per_cluster: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    predict: bool = False,
    progress: Progress = silent,
) -> Result:
    """Cluster training features [N, F] and compare the clusters of the test features with their classes.

    Args:
        train: Training features.
        train_labels: Their classes, which are only counted.
        test: Test features.
        test_labels: Their classes.
        scale: `unit` divides every vector by its length. `standard` standardises every feature by its mean and
            deviation over the training images, as scikit-learn's StandardScaler does; lengths then count.
        num_clusters: Number of clusters; the number of classes if None.
        iterations: Iterations after each start.
        redos: Number of starts; faiss keeps the one with the best objective.
        images_per_cluster: Fit on at most this many images per cluster, chosen by faiss (whose default is 256); None is
            all.
        seeds: Repeat everything for each seed; values are means over them.
        predict: Also return, for every seed, the class that the cluster of every test image is matched with; its score
            is the cosine with the centre of the cluster.
        progress: Called with (seeds done, all).

    Returns:
        NMI, AMI, ARI, accuracy, homogeneity and completeness on the test features. The details hold every seed, with
        the numbers of clusters that contain no training image and no test image.
    """
    train_norms, test_norms = check_pair(train, test)
    labels, truth, _ = check_classes(train, train_labels, test, test_labels)
    k = num_clusters if num_clusters is not None else len(np.unique(labels))
    if k > len(train):
        raise DataError(
            f"k-means with {k} clusters needs at least {k} images, received {len(train)}. Lower num_clusters."
        )
    settings = {
        "scale": scale,
        "clusters": k,
        "iterations": iterations,
        "redos": redos,
        "images_per_cluster": images_per_cluster or "all",
        "seeds": list(seeds),
    }
    _faiss()
    scikit_learn("metrics")  # before minutes of clustering
    if scale == "standard":
        scaler = scikit_learn("preprocessing").StandardScaler().fit(train)
        fit, score = scaler.transform(train), scaler.transform(test)
        lengths = norms(score)
    else:
        fit, score = normalised(train, train_norms), normalised(test, test_norms)
        lengths = np.ones(len(score), dtype=np.float32)
    runs = []
    for done, seed in enumerate(seeds):
        progress(done, len(seeds))
        runs.append(_one(fit, score, lengths, truth, k, iterations, redos, images_per_cluster, seed))
    values, spread = mean_and_deviation([metrics for metrics, _, _ in runs])
    details = [{"seed": seed, **metrics, **counts} for seed, (metrics, counts, _) in zip(seeds, runs, strict=True)]
    predicted = {f"@seed {seed}": matched for seed, (_, _, matched) in zip(seeds, runs, strict=True)} if predict else {}
    return Result(values=values, settings=settings, spread=spread, details={"seeds": details}, predicted=predicted)


def fit_kmeans(
    features: Features,
    k: int,
    *,
    iterations: int,
    redos: int,
    images_per_cluster: int | None = None,
    seed: int,
    start: Features | None = None,
) -> Any:
    """Fit spherical k-means on features [N, F] by faiss, and return its object: `centroids`, `index`, `obj`.

    Args:
        features: What is clustered.
        k: Number of clusters.
        iterations: Iterations after each start.
        redos: Number of starts; faiss keeps the one with the best objective.
        images_per_cluster: Fit on at most this many images per cluster, chosen by faiss; None is all.
        seed: Seed of the starts and of that choice.
        start: Centres [k, F] to start from, instead of images.
    """
    clustering = _faiss().Kmeans(
        features.shape[1],
        k,
        niter=iterations,
        nredo=redos,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,  # faiss warns on the terminal below 39
        max_points_per_centroid=images_per_cluster or len(features),
    )
    clustering.train(features, init_centroids=start)
    return clustering


def _one(
    train: Features,
    test: Features,
    lengths: Features,
    truth: Labels,
    k: int,
    iterations: int,
    redos: int,
    images_per_cluster: int | None,
    seed: int,
) -> tuple[dict[str, float], dict[str, float], Predicted]:
    """Return metrics, counts and matched classes of one seed; `lengths` are those of the test vectors."""
    clustering = fit_kmeans(
        train, k, iterations=iterations, redos=redos, images_per_cluster=images_per_cluster, seed=seed
    )
    found = {name: clustering.index.search(part, 1) for name, part in (("train", train), ("test", test))}
    clusters = {name: nearest[:, 0] for name, (_, nearest) in found.items()}
    counts: dict[str, float] = {f"empty_{name}": k - len(np.unique(each)) for name, each in clusters.items()}
    matched = Predicted(matched_classes(truth, clusters["test"]), (found["test"][0][:, 0] / lengths).astype(np.float64))
    return clustering_metrics(truth, clusters["test"]), {"objective": float(clustering.obj[-1]), **counts}, matched


def _faiss() -> Any:
    try:
        import faiss  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError("k-means needs faiss. Run `pip install 'carp-ssl[eval]'`.") from None
    return faiss
