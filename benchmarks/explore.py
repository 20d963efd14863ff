"""How fast and how good are the report of a run, `carp cluster`, `carp label` and `carp explore`?

    python -m benchmarks.explore report --run RUN --images IMAGES [--work FOLDER]
    python -m benchmarks.explore cluster --features FEATURES [FEATURES …] [--seeds 5]
    python -m benchmarks.explore label --features FEATURES [--shots 1 4 16] [--draws 3]
    python -m benchmarks.explore explorer [--points 10000 100000 1000000] [--work FOLDER]
    python -m benchmarks.explore plotly [--points 10000 100000 1000000] [--work FOLDER]

`report` embeds all images first, if that has not been done, and then measures the page: seconds and megabytes; then a
page with as many points and thumbnails as pages have at most. `cluster` compares `carp cluster` with scikit-learn's
KMeans on the same features of unit length, by NMI with the labels and by processor seconds. `label` draws a few labels
per class, predicts all others, and then adds one label per class: of images that `carp label` suggests, or random ones.
`explorer` serves made-up features of 128 numbers in a process of its own, and measures its start, the first paint in
chromium (software rendering), neighbours and clusters, and the memory of the server; `plotly` measures the first paint
of as many points by Plotly's scattergl.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

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


class _Squares:
    """Images of one colour, as many as one likes."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def fetch(self, index: int) -> NDArray[np.uint8]:
        """One image."""
        return np.full((32, 32, 3), (index % 256, index // 256 % 256, 128), dtype=np.uint8)

    def place(self, index: int) -> str:
        """Its name."""
        return f"squares/{index:07d}.png"


def serve(arguments: argparse.Namespace) -> Iterator[Line]:
    """Serve features in a file until the standard input ends; for `explorer`."""
    import carp.web.server

    (file,), started = arguments.features, time.process_time()
    with carp.explore(file, _Squares(len(np.load(file, mmap_mode="r")))) as explorer:
        yield {"address": explorer.address, "processor": time.process_time() - started}
        sys.stdin.read()


def explorer(arguments: argparse.Namespace) -> Iterator[Line]:
    """Start, first paint, neighbours, clusters and memory of the explorer."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=arguments.work) as work, _browser() as browser:
        for count in arguments.points:
            file = Path(work) / "vectors.npy"
            centres = generator.normal(size=(1000, 128)).astype(np.float32)
            noise = generator.standard_normal((count, 128), dtype=np.float32)
            np.save(file, centres[generator.integers(0, 1000, count)] + noise)
            command = [sys.executable, "-m", "benchmarks.explore", "serve", "--features", str(file)]
            started = time.monotonic()
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdin is not None
                assert server.stdout is not None
                begun = json.loads(server.stdout.readline())
                address = begun["address"]
                line: Line = {"points": count, "seconds to the address": round(time.monotonic() - started, 1)}
                line["processor seconds, without imports"] = round(begun["processor"], 2)
                line["first neighbours, ms"] = round(_asked(address, "neighbours/0"), 1)
                used = _processor(server.pid)
                alone = [_asked(address, f"neighbours/{row}") for row in range(1, 41)]
                line["neighbours, ms"] = judged(float(np.median(alone)), 100, at_least=False)
                line["fastest and slowest of 40, ms"] = [round(each(alone), 1) for each in (min, max)]
                line["neighbours, processor ms"] = round(1000 * (_processor(server.pid) - used) / len(alone), 1)
                used, started = _processor(server.pid), time.monotonic()
                while "working" in _json(address, "clusters/0/50"):
                    time.sleep(0.2)
                line["50 clusters, s"] = round(time.monotonic() - started, 2)
                line["50 clusters, processor s"] = round(_processor(server.pid) - used, 2)
                page, used = browser.new_page(), _family()
                page.goto(address)
                line["first paint, s"] = round(_until(page, "Carp.explorer && Carp.explorer.painted") / 1000, 2)
                line["first paint, processor s of browser and server"] = round(_family() - used, 2)
                line["a frame while zooming, ms"] = round(min(float(page.evaluate(_FRAME)) for _ in range(5)), 1)
                busy = [_asked(address, f"neighbours/{row}") for row in range(41, 61)]
                line["neighbours during t-SNE, ms"] = round(float(np.median(busy)), 1)
                status = Path(f"/proc/{server.pid}/status").read_text()
                memory = dict(each.split(":", 1) for each in status.splitlines())
                line["server memory, MB"] = int(memory["VmRSS"].split()[0]) // 1000
                line["of these, mapped files"] = int(memory["RssFile"].split()[0]) // 1000
                page.close()
                server.stdin.close()
                server.kill()
            yield line


_FRAME = """new Promise((done) => {
  const from = performance.now();
  Carp.explorer.maps[0].zoom(1.1);
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - from)));
})"""
_PLOT = """
const x = Float32Array.from({ length: n }, Math.random), y = Float32Array.from(x, Math.random);
const color = Array.from(x, () => Carp.colour("student")), plot = document.createElement("div");
plot.style.height = "600px";
document.body.append(plot);
Plotly.newPlot(plot, [{ type: "scattergl", mode: "markers", x, y, marker: { color, size: 3 } }])
  .then(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
"""


def plotly(arguments: argparse.Namespace) -> Iterator[Line]:
    """First paint of points by Plotly, from a page of its own."""
    with tempfile.TemporaryDirectory(dir=arguments.work) as work, _browser() as browser:
        for count in arguments.points:
            file = Path(work) / "page.html"
            code = f"const n = {count};" + _PLOT
            scripts = [*chart_scripts(), code]
            write_page(file, "sheet.html", title="points", scripts=scripts, evaluates=True, groups=[])
            page, used = browser.new_page(), _family()
            page.goto(file.as_uri(), timeout=600_000)
            line = {"points": count, "first paint, s": round(_until(page, "window.painted") / 1000, 2)}
            yield line | {"first paint, processor s of the browser": round(_family() - used, 2)}
            page.close()


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CARP_BROWSER") or shutil.which("chromium")
    with sync_playwright() as driver:
        arguments = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
        browser = driver.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


def _until(page: Any, expression: str) -> float:
    """Wait for a value that JavaScript gives."""
    while not (found := page.evaluate(expression)):
        time.sleep(0.02)
    return float(found)


def _processor(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family() -> float:
    """Seconds that all processes that this one has started have computed: browser and server."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(_processor(each) for each in ours - {os.getpid()} if Path(f"/proc/{each}").exists())


def _asked(address: str, path: str) -> float:
    """Milliseconds of a request."""
    started = time.monotonic()
    _json(address, path)
    return 1000 * (time.monotonic() - started)


def _json(address: str, path: str) -> Any:
    with urlopen(address + path, timeout=600) as answer:
        return json.load(answer)


def main() -> None:
    """Measure and print one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {each.__name__: each for each in (report, cluster, label, explorer, plotly, serve)}
    parser.add_argument("what", choices=list(measures))
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--features", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--points", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    for line in measures[arguments.what](arguments):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
