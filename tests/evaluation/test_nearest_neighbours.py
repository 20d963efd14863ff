"""k-NN against loops that anyone can read, and what must not change its result."""

from pathlib import Path

import numpy as np
import pytest
import torch

from carp.errors import DataError
from carp.evaluation import nearest_neighbours as module
from carp.evaluation.feature_arrays import norms
from carp.evaluation.nearest_neighbours import knn, knn_accuracy, knn_leave_one_out

KS = (1, 5, 20, 50)


def make(num_bank: int, num_queries: int, num_features: int, num_classes: int, *, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((num_classes, num_features))
    labels = rng.integers(0, num_classes, num_bank + num_queries)
    labels[:num_classes] = np.arange(num_classes)
    features = centres[labels] + 2 * rng.standard_normal((len(labels), num_features))
    features *= rng.uniform(0.1, 9, (len(labels), 1))
    x = features.astype(np.float32)
    return [x[:num_bank], labels[:num_bank], x[num_bank:], labels[num_bank:]]


def plain(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, truth: np.ndarray, k: int, *, leave_one_out: bool = False
) -> tuple[float, float, float]:
    """Top-1, top-5 and mean per class, one query at a time, in float64."""
    unit = bank.astype(np.float64) / np.linalg.norm(bank.astype(np.float64), axis=1, keepdims=True)
    top1 = top5 = 0
    per_class: dict[int, list[bool]] = {}
    for i, query in enumerate(queries.astype(np.float64)):
        similarity = unit @ (query / np.linalg.norm(query))
        if leave_one_out:
            similarity[i] = -np.inf
        nearest = np.lexsort((np.arange(len(bank)), -similarity))[:k]
        votes: dict[int, float] = {}
        for j in nearest:
            votes[labels[j]] = votes.get(labels[j], 0) + np.exp(similarity[j] / 0.07)
        ranking = sorted(votes, key=lambda c: (-votes[c], c))
        top1 += truth[i] == ranking[0]
        top5 += truth[i] in ranking[:5]
        per_class.setdefault(truth[i], []).append(truth[i] == ranking[0])
    mean = sum(sum(right) / len(right) for right in per_class.values()) / len(per_class)
    return top1 / len(queries), top5 / len(queries), mean


@pytest.mark.parametrize("shape", [(700, 90, 16, 10), (2500, 65, 33, 40), (51, 7, 3, 3)])
def test_equals_the_plain_loops(shape: tuple[int, int, int, int]) -> None:
    data = make(*shape)
    values = knn(*data, k=KS).values
    for k in KS:
        top1, top5, per_class = plain(*data, k)
        assert values[f"top1@{k}"] == top1
        assert values[f"mean_per_class@{k}"] == pytest.approx(per_class, abs=1e-12)
        if shape[3] > 5:
            assert values[f"top5@{k}"] == top5
        else:
            assert f"top5@{k}" not in values
        assert knn_accuracy(*data, k=k) == top1


def test_leave_one_out_equals_the_plain_loops() -> None:
    bank, labels, _, _ = make(600, 1, 16, 10)
    for k in (1, 20):
        assert knn_leave_one_out(bank, labels, k=k) == plain(bank, labels, bank, labels, k, leave_one_out=True)[0]
    with pytest.raises(DataError, match="needs at least 601"):
        knn_leave_one_out(bank, labels, k=600)


def test_without_queries_every_image_is_left_out_in_turn() -> None:
    bank, labels, queries, truth = make(600, 9, 16, 10)
    found = knn(bank, labels, None, None, k=(1, 20, 599))
    assert found.settings["leave_one_out"]
    for k in (1, 20, 599):
        top1, top5, per_class = plain(bank, labels, bank, labels, k, leave_one_out=True)
        assert (found.values[f"top1@{k}"], found.values[f"top5@{k}"]) == (top1, top5)
        assert found.values[f"mean_per_class@{k}"] == pytest.approx(per_class, abs=1e-12)
        assert top1 != pytest.approx(per_class, abs=1e-3), "classes of different size must matter"
    assert knn(bank, labels, queries, truth, k=(1, 20, 599)).values.keys() == found.values.keys()
    with pytest.raises(DataError, match="needs at least 601 images in the bank, received 600"):
        knn(bank, labels, None, None, k=(600,))
    with pytest.raises(DataError, match="labels of queries without their features"):
        knn(bank, labels, None, truth)


def test_several_labels_per_image_are_for_another_protocol() -> None:
    bank, labels, queries, truth = make(60, 9, 16, 10)
    with pytest.raises(DataError, match=r"received an array of shape \(60, 10\)\. Give one label"):
        knn(bank, np.eye(10, dtype=np.int64)[labels], queries, truth, k=(5,))
    with pytest.raises(DataError, match=r"one label per image, received labels of shape \(60, 10\)"):
        knn_leave_one_out(bank, np.eye(10, dtype=np.int64)[labels])


def test_the_whole_bank_may_vote() -> None:
    data = make(40, 20, 5, 7)
    assert knn(*data, k=(40,)).values["top1@40"] == plain(*data, 40)[0]


def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bank, labels, queries, truth = make(3001, 333, 24, 30)
    np.save(tmp_path / "bank.npy", bank)
    mapped = np.load(tmp_path / "bank.npy", mmap_mode="r")
    whole = module._neighbours(bank, norms(bank), queries, 50, leave_one_out=False)
    monkeypatch.setattr(module, "_BANK_AT_A_TIME", 512)
    monkeypatch.setattr(module, "_QUERIES_AT_A_TIME", 64)
    monkeypatch.setattr(module, "_SELECT_AT_A_TIME", 16)
    parts = module._neighbours(mapped, norms(mapped), queries, 50, leave_one_out=False)
    assert torch.equal(module._read_key(parts)[1], module._read_key(whole)[1])
    assert knn(mapped, labels, queries, truth, k=KS).values["top1@20"] == plain(bank, labels, queries, truth, 20)[0]


@pytest.mark.parametrize(("num_bank", "num_queries", "num_features"), [(10, 5, 7), (300, 130, 17), (3000, 700, 64)])
def test_order_of_queries_does_not_matter(num_bank: int, num_queries: int, num_features: int) -> None:
    bank, _, queries, _ = make(num_bank, num_queries, num_features, 5)
    lengths = norms(bank)
    order = np.random.default_rng(5).permutation(num_queries)
    straight = module._neighbours(bank, lengths, queries, 9, leave_one_out=False)
    mixed = module._neighbours(bank, lengths, queries[order], 9, leave_one_out=False)
    assert torch.equal(straight[order], mixed)


def test_equals_stand_in_the_order_of_the_bank() -> None:
    rng = np.random.default_rng(0)
    few = rng.standard_normal((30, 12)).astype(np.float32)
    bank = few[rng.integers(0, 30, 4000)]  # about 133 copies of each
    keys = module._neighbours(bank, norms(bank), few, 200, leave_one_out=False)
    similarity, index = module._read_key(keys)
    same = similarity[:, 1:] == similarity[:, :-1]
    assert same.float().mean() > 0.9
    assert (index[:, 1:] > index[:, :-1])[same].all()
    for row, query in enumerate(few):  # copies of the query itself come first, all of them
        copies = np.flatnonzero((bank == query).all(axis=1))[:200]
        assert index[row, : len(copies)].tolist() == copies.tolist()


def test_equal_images_everywhere() -> None:
    bank = np.ones((2000, 4), dtype=np.float32)
    labels = np.repeat([1, 0], 1000)
    keys = module._neighbours(bank, norms(bank), bank[:3], 200, leave_one_out=False)
    assert module._read_key(keys)[1].tolist() == [list(range(200))] * 3
    assert knn(bank, labels, bank[:3], np.array([1, 1, 0]), k=(1, 200)).values["top1@200"] == 2 / 3


def test_equal_votes_go_to_the_lower_class() -> None:
    bank = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    queries = np.array([[1, 0], [1, 0]], dtype=np.float32)
    assert knn(bank, np.array([2, 1, 0]), queries, np.array([1, 2]), k=(2,)).values["top1@2"] == 0.5


def test_a_class_without_a_vote_is_never_right() -> None:
    bank = np.eye(8, dtype=np.float32)
    values = knn(bank, np.arange(8), bank[:1], np.array([7]), k=(1, 8)).values
    assert values["top5@1"] == 0  # only class 0 has a vote
    assert values["top5@8"] == 0  # six equals stand before class 7


def test_zeros_and_signs() -> None:
    values = torch.tensor([-torch.inf, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0])
    keys = module._key(values, torch.zeros(7, dtype=torch.int64))
    assert (keys.diff() >= 0).all()
    assert keys[3] == keys[4]
    similarity, index = module._read_key(module._key(values, torch.arange(7) + 2**31))
    assert torch.equal(similarity, values)
    assert index.tolist() == list(range(2**31, 2**31 + 7))


def test_a_vector_of_zeros_is_similar_to_nothing() -> None:
    data = make(60, 20, 5, 7)
    data[0][5] = 0
    data[2][3] = 0
    assert 0 <= knn(*data, k=(10,)).values["top1@10"] <= 1


def test_a_small_temperature_is_the_nearest_neighbour() -> None:
    data = make(300, 50, 8, 6)
    assert knn(*data, k=(30,), temperature=1e-4).values["top1@30"] == knn(*data, k=(1,)).values["top1@1"]
