"""What is wrong with stored features is said in one sentence, by every protocol alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.errors import DataError
from carp.evaluation import feature_arrays
from carp.evaluation.clustering import kmeans
from carp.evaluation.few_shot.few_labels import few_shot
from carp.evaluation.linear.probe import linear_probe
from carp.evaluation.nearest_neighbours import knn
from carp.evaluation.result import Result

PROTOCOLS: list[Callable[..., Result]] = [knn, kmeans, few_shot, linear_probe]


def parts(**changes: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    whole = {
        "train": rng.standard_normal((300, 8)).astype(np.float32),
        "train_labels": np.arange(300) % 3,
        "test": rng.standard_normal((30, 8)).astype(np.float32),
        "test_labels": np.arange(30) % 3,
    }
    return list((whole | changes).values())


def with_nan() -> np.ndarray:
    features = np.ones((300, 8), dtype=np.float32)
    features[7, 3] = np.nan
    return features


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"train_labels": None}, "the training images have no labels"),
    ({"test_labels": None}, "the test images have no labels"),
    ({"train_labels": np.zeros(300, dtype=np.int64)}, "only one class"),
    ({"test_labels": np.arange(29)}, "29 labels for 30 images"),
    ({"test_labels": np.full(30, 4)}, "not in the training labels; the first is 4"),
    ({"test_labels": np.arange(30) % 3 - 1}, "10 of the test images have no label"),
    ({"test_labels": np.full(30, 0.5)}, "must be integers, received float64"),
    ({"train": with_nan()}, "training features of 1 images are not finite numbers; the first is image 7"),
    ({"test": np.full((30, 8), np.inf, dtype=np.float32)}, "test features of 30 images are not finite"),
    ({"test": np.ones((30, 9), dtype=np.float32)}, "the same length, received 8 and 9"),
    ({"test": np.ones((30, 8))}, "float32 array of images × features, received float64"),
    ({"test": np.ones(30, dtype=np.float32)}, r"of shape \(30,\)"),
    ({"test": np.ones((0, 8), dtype=np.float32), "test_labels": np.arange(0)}, "no test features"),
    ({"train": np.ones((300, 0), dtype=np.float32)}, "no training features"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.__name__)
@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes(protocol: Callable[..., Result], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        protocol(*parts(**changes))
    assert "\n" not in str(caught.value)


def test_more_neighbours_or_clusters_than_images() -> None:
    with pytest.raises(DataError, match="k = 301 needs at least 301 images in the bank, received 300"):
        knn(*parts(), k=(10, 301))
    with pytest.raises(DataError, match="301 clusters needs at least 301 images, received 300"):
        kmeans(*parts(), num_clusters=301)


def several(num_images: int, *, empty: int | None = None, full: int | None = None) -> np.ndarray:
    labels = (np.arange(num_images)[:, None] % np.array([2, 3, 5]) == 0).astype(np.int64)
    if empty is not None:
        labels[:, empty] = 0
    if full is not None:
        labels[:, full] = 1
    return labels


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": several(30)[:, :2]}, "received 3 and 2 columns"),
        ({"test_labels": np.arange(30)}, "images × classes for a multi-label set, received shape"),
        ({"test_labels": several(30, empty=1)}, "no test image shows class 1"),
        ({"train_labels": several(300, full=2)}, "every training image shows class 2"),
        ({"test_labels": None}, "no labels"),
    ],
)
def test_mistakes_with_several_labels(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        few_shot(*parts(**{"train_labels": several(300), "test_labels": several(30), **changes}))


def test_features_are_walked_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    features = rng.standard_normal((101, 6)).astype(np.float32)
    features[50] = 0
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    whole = feature_arrays.norms(features)
    monkeypatch.setattr(feature_arrays, "_BYTES_AT_A_TIME", 6 * 4 * 10)
    assert len(list(feature_arrays.spans(mapped))) == 11
    assert np.array_equal(feature_arrays.norms(mapped), whole)
    assert np.allclose(whole, np.linalg.norm(features, axis=1), atol=1e-6)
    lengths = np.linalg.norm(feature_arrays.normalised(mapped, whole), axis=1)
    assert lengths[50] == 0
    assert np.allclose(np.delete(lengths, 50), 1)


def test_a_result_survives_the_disk(tmp_path: Path) -> None:
    result = linear_probe(*parts(), epochs=1, lrs=(0.1, 1e30))
    result.write(tmp_path / "results" / "linear.json")
    read = json.loads((tmp_path / "results" / "linear.json").read_text())
    assert read["values"] == result.values
    assert len(read["details"]["grid"]) == 8
