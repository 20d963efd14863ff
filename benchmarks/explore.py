"""How fast and how good are the report of a run, `carp cluster` and `carp label`?

    python -m benchmarks.explore report --run RUN --images IMAGES [--work FOLDER]
    python -m benchmarks.explore cluster --features FEATURES [FEATURES …] [--seeds 5]
    python -m benchmarks.explore label --features FEATURES [--shots 1 4 16] [--draws 3]

`report` embeds all images first, if that has not been done, and then measures the page: seconds and megabytes; then a
page with as many points and thumbnails as pages have at most. `cluster` compares `carp cluster` with scikit-learn's
KMeans on the same features of unit length, by NMI with the labels and by processor seconds. `label` draws a few labels
per class, predicts all others, and then adds one label per class: of images that `carp label` suggests, or random ones.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import carp
from benchmarks.shared import judged
from carp.evaluation.few_shot.few_labels import draw_single_label
from carp.evaluation.metrics import clustering_metrics, scikit_learn
from carp.exploration.clusters import cluster_features, unit_vectors
from carp.exploration.label_advice import suggest_images
from carp.exploration.label_prediction import calibration_error, predict_labels
from carp.exploration.layout import Layout
from carp.features.extract import Features
from carp.features.store import open_store
from carp.images.open_source import open_source
from carp.images.source import read
from carp.report.pages.charts import chart_scripts
from carp.report.pages.image_map import MOST_POINTS, THUMBNAIL, Classes, Scale, map_data, map_scripts
from carp.report.pages.template import write_page
from carp.report.pages.thumbnails import thumbnail

Line = dict[str, Any]


def report(arguments: argparse.Namespace) -> Iterator[Line]:
    """Time and size of the page of a run whose features are stored, and the size of the largest page."""
    carp.evaluate("knn", arguments.run, arguments.images, branch="teacher", k=20)  # stores the features
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        page = Path(work) / "report.html"
        carp.report_run(arguments.run, arguments.images, out=page)  # the features of the baselines
        started, used = time.monotonic(), time.process_time()
        carp.report_run(arguments.run, arguments.images, out=page)
        seconds, processor = time.monotonic() - started, time.process_time() - used
        yield {
            "images": len(open_source(arguments.images)),
            "seconds": judged(seconds, 60, at_least=False),
            "processor seconds": round(processor, 1),
            "megabytes": judged(page.stat().st_size / 1e6, 15, at_least=False),
        }
        yield {"points": MOST_POINTS, "megabytes": judged(_largest(arguments.images, page), 15, at_least=False)}


def _largest(images: str, page: Path) -> float:
    """Megabytes of a page with one map of as many points and thumbnails as there are at most."""
    source = open_source(images)
    generator = np.random.default_rng(0)
    rows = generator.integers(0, len(source), MOST_POINTS)
    layout = Layout(generator.uniform(-1, 1, (MOST_POINTS, 2)).astype(np.float32), "random")
    classes = Classes("class", generator.integers(0, 100, MOST_POINTS), [f"class {n}" for n in range(100)])
    scale = Scale("certainty", generator.uniform(size=MOST_POINTS).astype(np.float32))
    names = [source.place(int(row)) for row in rows]
    made = map_data(
        layout, names, [classes, scale], lambda n: thumbnail(read(source, int(rows[n])), THUMBNAIL, enlarge=False)
    )
    scripts = [*chart_scripts(), *map_scripts()]
    write_page(page, "sheet.html", title="largest", data={"map": made}, scripts=scripts, evaluates=True, groups=[])
    return page.stat().st_size / 1e6


def cluster(arguments: argparse.Namespace) -> Iterator[Line]:
    """Quality and time of k-means beside scikit-learn's."""
    sklearn = scikit_learn("cluster")
    for folder in arguments.features:
        store = open_store(folder)
        features, labels = np.array(store.features), np.asarray(store.labels)
        vectors, k = unit_vectors(features), len(store.classes)

        def our_own(seed: int, features: Features = features, k: int = k) -> NDArray[np.int64]:
            return cluster_features(features, k, seed=seed).own

        def their_own(seed: int, vectors: Features = vectors, k: int = k) -> NDArray[np.int64]:
            return np.asarray(sklearn.KMeans(k, random_state=seed).fit(vectors).labels_, dtype=np.int64)

        seeds = range(arguments.seeds)
        for find in (our_own, their_own):
            find(0)  # imports
        ours, theirs = ([_timed(find, seed, labels) for seed in seeds] for find in (our_own, their_own))
        (nmi, seconds), (their_nmi, their_seconds) = (np.mean(each, axis=0) for each in (ours, theirs))
        yield {
            "features": str(folder),
            "images": len(features),
            "clusters": k,
            "nmi": judged(float(nmi), round(float(their_nmi), 3), at_least=True),
            "nmi deviation": [round(float(np.std([nmi for nmi, _ in each])), 3) for each in (ours, theirs)],
            "processor seconds": round(float(seconds), 3),
            "scikit-learn": {"nmi": round(float(their_nmi), 3), "processor seconds": round(float(their_seconds), 3)},
            "share of its time": judged(float(seconds / their_seconds), 0.5, at_least=False),
        }


def _timed(find: Callable[[int], NDArray[np.int64]], seed: int, labels: NDArray[np.int64]) -> tuple[float, float]:
    started = time.process_time()
    own = find(seed)
    seconds = time.process_time() - started
    return clustering_metrics(labels, own)["nmi"], seconds


def label(arguments: argparse.Namespace) -> Iterator[Line]:
    """Accuracy and calibration of predicted labels, and what another label per class adds."""
    (folder,) = arguments.features
    store = open_store(folder)
    features, truth, k = np.array(store.features), np.asarray(store.labels), len(store.classes)
    for shots in arguments.shots:
        found: dict[str, list[float]] = {}
        for draw in range(arguments.draws):
            rows = draw_single_label(truth, shots, 0, draw).astype(np.int64)
            prediction = predict_labels(features, features[rows], truth[rows], k, seed=draw)
            free = np.setdiff1d(np.arange(len(truth)), rows)
            _add(found, "accuracy", (prediction.classes[free] == truth[free]).mean())
            _add(found, "calibration error", calibration_error(prediction.probabilities[free], truth[free]))
            random = np.random.default_rng(draw).permutation(free)[:k]
            suggested = np.array(suggest_images(features, rows, prediction, k, seed=draw), dtype=np.int64)
            for name, more in (("random", random), ("suggested", suggested)):
                both = np.concatenate([rows, more])
                left = np.setdiff1d(free, np.concatenate([random, suggested]))
                then = predict_labels(features, features[both], truth[both], k, seed=draw)
                _add(found, f"with {k} more, {name}", (then.classes[left] == truth[left]).mean())
        yield {
            "labels per class": shots,
            **{name: [round(float(np.mean(each)), 3), round(float(np.std(each)), 3)] for name, each in found.items()},
        }


def _add(found: dict[str, list[float]], name: str, value: Any) -> None:
    found.setdefault(name, []).append(float(value))


def main() -> None:
    """Measure and print one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["report", "cluster", "label"])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--features", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    for line in {"report": report, "cluster": cluster, "label": label}[arguments.what](arguments):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
