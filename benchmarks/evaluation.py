"""How near are the protocols to the bare products that they are made of?

    python -m benchmarks.evaluation [--quick] [--json] [--only knn kmeans …]

k-NN: 10,000 queries, a bank of 50,000, 2048 features, 1000 classes, k ∈ {10, 20, 100, 200}; beside the similarity
product alone and a DINO-style evaluation (chunks of queries, topk, one-hot votes, once per k). k-means: beside faiss
with the same settings on features that are ready. Linear grid: 40 classifiers on stored features beside one, and beside
40 PyTorch classifiers with an optimiser each; and over images, with crops and a ResNet-18 at 96 pixels. Embed:
from JPEGs of 500 × 375 to features of a ResNet-18 at 224 pixels, beside the encoder on tensors that are ready.
Contenders take turns; the best time of each counts.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from benchmarks.encoding import measure_embed, measure_linear_images
from benchmarks.shared import Measure, Measures, measures_parser, print_measures, take_turns
from carp.evaluation.clustering import kmeans
from carp.evaluation.linear.choice import scaled_grid
from carp.evaluation.linear.grid import LinearGrid, cosine, fit, shuffled
from carp.evaluation.nearest_neighbours import knn

KS = (10, 20, 100, 200)
TEMPERATURE = 0.07
Data = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def make_data(num_train: int, num_test: int, num_features: int, num_classes: int) -> Data:
    """Noisy classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_train + num_test)
    labels[:num_classes] = np.arange(num_classes)
    features = rng.standard_normal((len(labels), num_features), dtype=np.float32)
    features += 0.3 * rng.standard_normal((num_classes, num_features), dtype=np.float32)[labels]
    return features[:num_train], labels[:num_train], features[num_train:], labels[num_train:]


def bare_product(data: Data, rows: int = 512) -> None:
    """Every similarity once, into a buffer that is used again: the least that an exact k-NN must do."""
    bank, queries = torch.from_numpy(data[0]), torch.from_numpy(data[2])
    buffer = torch.empty(rows, len(bank))
    for start in range(0, len(queries), rows):
        part = queries[start : start + rows]
        torch.mm(part, bank.T, out=buffer[: len(part)])


def dino_style(data: Data, rows: int = 100) -> list[float]:
    """Top-1 of every k, each with products of its own, from features that are already normalised.

    100 queries at a time are what that evaluation takes of 10,000; its one-hot buffer is kept, as there.
    """
    bank, labels, queries, truth = (torch.from_numpy(part) for part in data)
    num_classes = int(labels.max()) + 1
    found = []
    for k in KS:
        right, buffer = 0, torch.empty(rows * k, num_classes)
        for start in range(0, len(queries), rows):
            part, wanted = queries[start : start + rows], truth[start : start + rows]
            similarity, indices = (part @ bank.T).topk(k, dim=1)
            one_hot = buffer[: len(part) * k].zero_().scatter_(1, labels[indices].view(-1, 1), 1.0)
            weights = (similarity / TEMPERATURE).exp()[:, :, None]
            votes = (one_hot.view(len(part), k, num_classes) * weights).sum(dim=1)
            right += int((votes.sort(dim=1, descending=True).indices[:, 0] == wanted).sum())
        found.append(right / len(queries))
    return found


def bare_faiss(data: Data, settings: dict[str, Any]) -> None:
    """k-means alone."""
    num_classes = len(np.unique(data[1]))
    faiss.Kmeans(
        data[0].shape[1], num_classes, spherical=True, seed=0, max_points_per_centroid=len(data[0]), **settings
    ).train(data[0])


def one_by_one(data: Data, epochs: int) -> None:
    """Forty classifiers, each with an optimiser of PyTorch, on the same batches."""
    num_classes = int(data[1].max()) + 1
    layers = [nn.Linear(data[0].shape[1], num_classes) for _ in range(40)]
    optimisers = [torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9) for layer in layers]
    batches = shuffled(data[0], data[1], np.arange(len(data[1])), batch_size=256, seed=0)
    for epoch in range(epochs):
        for x, y in batches(epoch):
            for layer, optimiser in zip(layers, optimisers, strict=True):
                optimiser.zero_grad()
                torch.autograd.backward(F.cross_entropy(layer(x), y))
                optimiser.step()


def at_once(data: Data, epochs: int, num_classifiers: int) -> None:
    """The same as a grid."""
    classifiers = scaled_grid(("sgd", "lars"), np.geomspace(1e-4, 3, 10).tolist(), (0.0, 1e-6), 256)[:num_classifiers]
    grid = LinearGrid(classifiers, data[0].shape[1], int(data[1].max()) + 1)
    batches = shuffled(data[0], data[1], np.arange(len(data[1])), batch_size=256, seed=0)
    fit(grid, batches, epochs=epochs, lr_factor=cosine(epochs))


def peak_megabytes(run: Callable[[], object]) -> float:
    """How much the resident memory rises at most while it runs (Linux)."""
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = int(status.read_text().split("VmRSS:")[1].split()[0])
    run()
    return (int(status.read_text().split("VmHWM:")[1].split()[0]) - before) / 1024


def measure_knn(quick: bool, rounds: int) -> Measures:
    """Speed and memory of k-NN."""
    bank, labels, queries, truth = make_data(50_000, 1_024 if quick else 10_000, 2048, 1000)
    for part in (bank, queries):
        np.divide(part, np.linalg.norm(part, axis=1, keepdims=True), out=part)
    data = (bank, labels, queries, truth)
    found: dict[str, list[float]] = {}

    def ours() -> None:
        values = knn(*data).values
        found["ours"] = [values[f"top1@{k}"] for k in KS]

    def dino() -> None:
        found["dino"] = dino_style(data)

    knn(bank[:2000], np.arange(2000) % 9, queries[:64], np.arange(64) % 9)  # buffers of the libraries
    megabytes = peak_megabytes(ours)
    seconds = take_turns({"product": lambda: bare_product(data), "ours": ours}, rounds)
    seconds |= take_turns({"dino": dino}, max(1, rounds // 2))
    assert np.allclose(found["ours"], found["dino"], atol=2 / len(queries)), found  # rounding may turn a near tie
    return {
        "k-NN, ours / bare product": (seconds["ours"] / seconds["product"], 1.2, False),
        "k-NN, DINO-style / ours": (seconds["dino"] / seconds["ours"], 3.3, True),
        "k-NN, MB beyond the features": (megabytes, 300.0, False),
    }


def measure_kmeans(quick: bool, rounds: int) -> Measures:
    """One seed with the paper's 100 iterations and 20 redos."""
    data = make_data(*((6_000, 1_000, 128, 10) if quick else (20_000, 4_000, 512, 20)))
    data[0][:] /= np.linalg.norm(data[0], axis=1, keepdims=True)
    kmeans(data[0][:100], np.arange(100) % 2, data[2][:9], np.arange(9) % 2, iterations=1, redos=1, seeds=(0,))
    seconds = take_turns(
        {
            "faiss": lambda: bare_faiss(data, {"niter": 100, "nredo": 20}),
            "ours": lambda: kmeans(*data, seeds=(0,)),
        },
        rounds,
    )
    return {"k-means, ours / bare faiss": (seconds["ours"] / seconds["faiss"], 1.05, False)}


def measure_grid(quick: bool, rounds: int) -> Measures:
    """Without an encoder: how much the forty cost by themselves."""
    data, epochs = make_data(4_000, 10, 512, 37), 2 if quick else 5
    one_by_one(data, 1)
    seconds = take_turns(
        {
            "one": partial(at_once, data, epochs, 1),
            "forty": partial(at_once, data, epochs, 40),
            "one by one": partial(one_by_one, data, epochs),
        },
        rounds,
    )
    return {
        "linear grid on features, 40 classifiers / 1": (seconds["forty"] / seconds["one"], None, False),
        "linear grid on features, 40 one by one / at once": (seconds["one by one"] / seconds["forty"], None, True),
    }


MEASURES: dict[str, Measure] = {
    "knn": measure_knn,
    "kmeans": measure_kmeans,
    "grid": measure_grid,
    "linear": measure_linear_images,
    "embed": measure_embed,
}


def main() -> None:
    """Parse the command line and print a table."""
    parser = measures_parser(__doc__, MEASURES, rounds=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    print_measures(MEASURES, arguments)


if __name__ == "__main__":
    main()
