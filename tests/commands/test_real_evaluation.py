"""Every protocol on real images with real weights, beside what is known of them and beside plain implementations."""

import os
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import carp

DATA = Path(os.environ.get("CARP_TEST_DATA", "data"))
CIFAR, CIFAR_WEIGHTS = DATA / "cifar10.tar.gz", DATA / "cifar_resnet_weights.tar.gz"
PETS, RESNET50 = DATA / "oxford_pets_96.tar.gz", DATA / "resnet50_keras_v1_rgb_backbone_fp16.pth"


def needs(*files: Path) -> pytest.MarkDecorator:
    missing = [file.name for file in files if not file.exists()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} in CARP_TEST_DATA")


def unpack(archive: Path, folder: Path, *, per_class: int | None = None) -> Path:
    """All of an archive, or so many files of every folder that holds files."""
    counts: Counter[Path] = Counter()
    with tarfile.open(archive) as members:
        for member in members:
            parent = Path(member.name).parent
            if member.isfile() and (per_class is None or counts[parent] < per_class):
                members.extract(member, folder, filter="data")
                counts[parent] += 1
    return folder


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 images of every class of both parts, and the weights."""
    folder = unpack(CIFAR, tmp_path_factory.mktemp("cifar"), per_class=500)
    return unpack(CIFAR_WEIGHTS, folder)


@pytest.mark.slow
@needs(CIFAR, CIFAR_WEIGHTS)
@pytest.mark.parametrize(("name", "known"), [("resnet20", 0.917), ("resnet56", 0.930)])
def test_protocols_agree_with_the_accuracy_of_trained_networks(cifar: Path, name: str, known: float) -> None:
    (weights,) = cifar.glob(f"*/{name}-*.th")
    train, test, out = cifar / "cifar10" / "train", cifar / "cifar10" / "test", cifar / name
    knn = carp.evaluate("knn", weights, train, test=test, out=out)
    assert knn.values["top1@20"] == pytest.approx(known, abs=0.015)
    kmeans = carp.evaluate("kmeans", weights, train, test=test, out=out, seeds=0)  # few redos end in poor optima
    assert kmeans.values["accuracy"] == pytest.approx(known, abs=0.02)
    cached = carp.evaluate("linear", weights, train, test=test, out=out, cached=True, epochs=30)
    assert cached.values["top1"] == pytest.approx(known, abs=0.015)
    crops = carp.evaluate("linear", weights, train, test=test, out=out, epochs=4, lrs=[0.1, 1], weight_decays=0)
    assert known - 0.04 < crops.values["top1"] < known + 0.015  # crops of 32 pixels are hard to tell apart
    few = carp.evaluate("few-shot", weights, train, test=test, out=out, shots=[16, "full"])
    assert few.values["top1@16"] == pytest.approx(known, abs=0.02)
    assert few.values["top1@full"] == pytest.approx(known, abs=0.015)


@pytest.mark.slow
@needs(CIFAR, CIFAR_WEIGHTS)
def test_real_features_are_judged_as_plain_implementations_judge_them(cifar: Path) -> None:
    (weights,) = cifar.glob("*/resnet20-*.th")
    stores = [carp.embed(weights, cifar / "cifar10" / part, cifar / f"{part}.features") for part in ("train", "test")]
    (bank, labels), (queries, truth) = ((np.array(s.features), np.array(s.labels)) for s in stores)
    unit_bank, unit_queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, queries))
    similarity = unit_queries.astype(np.float64) @ unit_bank.T.astype(np.float64)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :20]
    votes = np.zeros((len(queries), 10))
    for row, neighbours in enumerate(nearest):
        np.add.at(votes[row], labels[neighbours], np.exp(similarity[row, neighbours] / 0.07))
    plain = float((votes.argmax(axis=1) == truth).mean())
    found = carp.evaluate("knn", None, stores[0].folder, test=stores[1].folder, k=20)
    assert found.values["top1@20"] == pytest.approx(plain, abs=1 / len(queries))  # a near tie may turn
    regression = LogisticRegression(C=10, max_iter=500).fit(bank, labels).score(queries, truth)
    linear = carp.evaluate("linear", None, stores[0].folder, test=stores[1].folder, cached=True, epochs=30)
    assert linear.values["top1"] == pytest.approx(regression, abs=0.005)


@pytest.mark.slow
@needs(PETS, RESNET50)
def test_breeds_of_pets_are_told_apart_by_an_imagenet_network(tmp_path: Path) -> None:
    root = unpack(PETS, tmp_path / "pets")
    root = next(path.parent for path in root.rglob("oxford-iiit-pet"))
    settings = {"root": root, "size": 96, "resize": 96, "out": tmp_path}
    knn = carp.evaluate("knn", f"resnet-v1:{RESNET50}", "dataset:pets", **settings)
    linear = carp.evaluate("linear", f"resnet-v1:{RESNET50}", "dataset:pets", cached=True, epochs=30, **settings)
    assert knn.data["test"] == "dataset:pets:test"
    assert linear.values["top1"] > knn.values["top1@20"] > 0.3  # by chance 0.03
    stores = {len(np.load(path / "features.npy", mmap_mode="r")): path for path in (tmp_path / "features").iterdir()}
    train, test = (stores[count] for count in (3_680, 3_669))
    machine = LinearSVC(C=0.1).fit(np.load(train / "features.npy"), np.load(train / "labels.npy"))
    plain = machine.score(np.load(test / "features.npy"), np.load(test / "labels.npy"))
    assert linear.values["top1"] == pytest.approx(plain, abs=0.03)
