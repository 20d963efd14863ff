"""The retrieval protocol against plain loops, and its levels."""

import numpy as np
import pytest

from carp.errors import CarpError
from carp.evaluation.ranked.ground_truth import GroundTruth, SameClass
from carp.evaluation.ranked.ranking import Judged
from carp.evaluation.ranked.retrieval_scores import retrieval
from carp.evaluation.ranked.whitening import fit_whitening
from tests.evaluation.test_ranking import NONE, plain_average_precision, plain_precision


def random_truth(draw: np.random.Generator, num_queries: int, num_images: int) -> GroundTruth:
    kinds = draw.choice(4, (num_queries, num_images), p=[0.1, 0.1, 0.1, 0.7])
    kinds[0] = 3  # a query that asks for nothing
    kinds[1][kinds[1] == 0] = 3  # and one without easy images
    easy, hard, junk = (tuple(np.flatnonzero(row == kind) for row in kinds) for kind in range(3))
    names = tuple(f"image {i}" for i in range(num_images)), tuple(f"query {i}" for i in range(num_queries))
    return GroundTruth(names[1], names[0], None, easy, hard, junk)


def test_levels_against_plain_loops() -> None:
    draw = np.random.default_rng(0)
    truth = random_truth(draw, 40, 200)
    queries, database = (draw.standard_normal((n, 16)).astype(np.float32) for n in (40, 200))
    result = retrieval(queries, database, truth.levels())
    unit = [x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, database)]
    orders = np.argsort(-(unit[0] @ unit[1].T), axis=1, kind="stable").tolist()
    rules = {  # found, ignored: Radenović et al., section 4
        "easy": ("easy", "junk hard"),
        "medium": ("easy hard", "junk"),
        "hard": ("hard", "junk easy"),
    }
    for level, (found, ignored) in rules.items():
        rows = []
        for query, order in enumerate(orders):
            positives, junk = (
                {int(i) for kind in words.split() for i in getattr(truth, kind)[query]} for words in (found, ignored)
            )
            if positives:
                precisions = [plain_precision(order, positives, junk, k) for k in (1, 5, 10)]
                rows.append([plain_average_precision(order, positives, junk), *precisions])
        values = [result.values[f"{name}_{level}"] for name in ("map", "mp1", "mp5", "mp10")]
        assert values == pytest.approx(np.mean(rows, axis=0).tolist(), abs=1e-12)
        assert result.details[f"left_out_{level}"] == 40 - len(rows)
    assert result.details["left_out_easy"] == 2
    assert result.details["ap_easy"][0] is None


def test_labels_leave_the_query_out() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    features = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [1, 1]], dtype=np.float32)
    truth = {"": SameClass(labels, labels, leave_self_out=True)}
    result = retrieval(features, features, truth)
    assert result.values["map"] == 1.0  # the query itself, most similar of all, does not count
    assert result.details["left_out"] == 1  # the only image of class 2 asks for nothing
    assert retrieval(features, features, {"": SameClass(labels, labels)}).details["left_out"] == 0


def test_the_scale_of_features_is_no_matter() -> None:
    draw = np.random.default_rng(1)
    truth = random_truth(draw, 10, 60).levels()
    queries, database = (draw.standard_normal((n, 8)).astype(np.float32) for n in (10, 60))
    lengths = draw.uniform(0.1, 10, (60, 1)).astype(np.float32)
    assert retrieval(queries, database, truth).values == retrieval(3 * queries, database * lengths, truth).values


def test_whitening_is_applied_to_both() -> None:
    draw = np.random.default_rng(2)
    truth = random_truth(draw, 10, 60).levels()
    queries, database, others = (draw.standard_normal((n, 8)).astype(np.float32) for n in (10, 60, 500))
    white = fit_whitening(others)
    result = retrieval(queries, database, truth, whitening=white)
    assert result.values == retrieval(white.apply(queries), white.apply(database), truth).values
    assert result.settings["whitening"] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queries": np.ones((2, 5), np.float32)}, r"the same length, received 5 \(queries\), 4 \(database\)"),
        ({"queries": np.ones((3, 4), np.float32)}, "2 queries, but there are features of 3"),
        ({"queries": np.full((2, 4), np.nan, np.float32)}, "not finite"),
        ({"database": np.ones((0, 4), np.float32)}, "no database features"),
        ({"truth": {"": [Judged(NONE, NONE)] * 2}}, "no query has a relevant image"),
        ({"truth": {}}, "no levels"),
    ],
)
def test_mistakes(change: dict[str, object], words: str) -> None:
    inputs = {
        "queries": np.ones((2, 4), np.float32),
        "database": np.ones((3, 4), np.float32),
        "truth": {"": [Judged(np.array([0]), NONE)] * 2},
    }
    with pytest.raises(CarpError, match=words):
        retrieval(**(inputs | change))  # type: ignore[arg-type]
