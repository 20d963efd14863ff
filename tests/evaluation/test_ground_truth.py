"""Ground truth: published pickles, JSON, relevance files, labels; and what is wrong with them."""

import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.errors import DataError
from carp.evaluation.ranked.ground_truth import SameClass, read_ground_truth, read_relevance


def made() -> dict[str, Any]:
    return {
        "imlist": ["a", "b", "c", "d", "e"],
        "qimlist": ["q", "r"],
        "gnd": [
            {"bbx": [1.5, 2, 30, 40], "easy": [0, 3], "hard": [1], "junk": [4]},
            {"bbx": [0, 0, 9, 9], "easy": [], "hard": [2], "junk": []},
        ],
    }


def write(path: Path, truth: Any) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(truth))
    else:
        path.write_bytes(pickle.dumps(truth))
    return path


@pytest.mark.parametrize("name", ["gnd.pkl", "gnd.json"])
def test_reads_pickles_and_json(tmp_path: Path, name: str) -> None:
    truth = read_ground_truth(write(tmp_path / name, made()))
    assert truth.queries == ("q", "r")
    assert truth.database == ("a", "b", "c", "d", "e")
    assert truth.boxes is not None
    assert truth.boxes.tolist() == [[1.5, 2, 30, 40], [0, 0, 9, 9]]
    levels = truth.levels()
    got = {level: (sorted(rows[0].positives.tolist()), sorted(rows[0].junk.tolist())) for level, rows in levels.items()}
    assert got == {"easy": ([0, 3], [1, 4]), "medium": ([0, 1, 3], [4]), "hard": ([1], [0, 3, 4])}


def test_arrays_in_the_pickle(tmp_path: Path) -> None:
    truth = made()
    truth["gnd"][0] |= {"easy": np.array([0, 3]), "bbx": np.array([1.5, 2, 30, 40])}
    read = read_ground_truth(write(tmp_path / "gnd.pkl", truth))
    assert read.easy[0].tolist() == [0, 3]


def changed(**changes: Any) -> dict[str, Any]:
    return made() | changes


def entry(**changes: Any) -> dict[str, Any]:
    truth = made()
    truth["gnd"][1] |= changes
    return truth


@pytest.mark.parametrize("name", ["gnd.pkl", "gnd.json"])
@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ([1, 2], "must have gnd, imlist, qimlist, received list"),
        ({"gnd": []}, "must have gnd, imlist, qimlist, received gnd"),
        (changed(imlist="abc"), "imlist must be a list of names"),
        (changed(imlist=[]), "imlist must be a list of names"),
        (changed(qimlist=["q", 3]), "qimlist must be a list of names"),
        (changed(qimlist=["q", "q"]), "qimlist names 'q' more than once"),
        (changed(gnd=made()["gnd"][:1]), "an entry for each of the 2 queries, received 1 entries"),
        (changed(gnd={}), "an entry for each of the 2 queries, received dict"),
        (changed(gnd=[1, 2]), r"query 0 \(q\): an entry of gnd must be a dictionary, received int"),
        (entry(easy=[5]), r"query 1 \(r\): 'easy' names image 5, but imlist has 5, counted from 0"),
        (entry(junk=[-1]), "'junk' names image -1"),
        (entry(hard="2"), "'hard' must be a list of numbers of images, received str"),
        (entry(hard=None), "'hard' must be a list of numbers of images, received nothing"),
        (entry(hard=[2.5]), "'hard' must be a list of numbers of images"),
        (entry(hard=[2, 2]), "'hard' names an image more than once"),
        (entry(junk=[2]), "in more than one of easy, hard, junk"),
        (entry(bbx=[1, 2, 3]), "bbx must be left, top, right and bottom"),
        (entry(bbx=[5, 5, 5, 9]), "bbx must be left, top, right and bottom"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, truth: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as wrong:
        read_ground_truth(write(tmp_path / name, truth))
    assert str(tmp_path / name) in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_boxes_for_all_or_none(tmp_path: Path) -> None:
    truth = made()
    del truth["gnd"][0]["bbx"]
    with pytest.raises(DataError, match="1 of the 2 queries have a box"):
        read_ground_truth(write(tmp_path / "gnd.pkl", truth))
    del truth["gnd"][1]["bbx"]
    assert read_ground_truth(write(tmp_path / "gnd.pkl", truth)).boxes is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_ground_truth(tmp_path / "gnd.pkl")
    (tmp_path / "gnd.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        read_ground_truth(tmp_path / "gnd.json")


def test_published_ground_truth(tmp_path: Path) -> None:
    """Number of queries and images, of easy, hard and junk as in the publication's files."""
    archive = Path(os.environ.get("CARP_TEST_DATA", "data")) / "retrieval_gnd.tar.gz"
    if not archive.exists():
        pytest.skip("the published ground truth (retrieval_gnd.tar.gz) is not in CARP_TEST_DATA")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    for name, images in (("roxford5k", 4993), ("rparis6k", 6322)):
        truth = read_ground_truth(tmp_path / "retrieval_gnd" / f"gnd_{name}.pkl")
        assert (len(truth.queries), len(truth.database)) == (70, images)
        assert truth.boxes is not None
        levels = truth.levels()
        assert not any(not len(judged.positives) for judged in levels["medium"])
        for judged in (j for rows in levels.values() for j in rows):
            assert not np.intersect1d(judged.positives, judged.junk).size


def test_labels() -> None:
    same = SameClass(np.array([2, 7, 0]), np.array([0, 2, 2, 0]))
    assert [judged.positives.tolist() for judged in same] == [[1, 2], [], [0, 3]]
    alone = SameClass(np.array([1, 1, 0]), np.array([1, 1, 0]), leave_self_out=True)
    assert [(j.positives.tolist(), j.junk.tolist()) for j in alone] == [([1], [0]), ([0], [1]), ([], [2])]
    with pytest.raises(DataError, match="the same images, received 1 and 2"):
        SameClass(np.array([1]), np.array([1, 1]), leave_self_out=True)


QUERIES, DATABASE = ["q/one.jpg", "q/two.jpg", "q/three.jpg"], ["a.jpg", "sub/b.png", "c.jpg"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.json", '{"one": ["a", "b.png"], "q/two.jpg": {"relevant": ["sub/b"], "junk": ["a.jpg"]}}'),
        ("r.csv", "query,image,kind\none,a\none,sub/b.png,relevant\n\ntwo.jpg,b\ntwo,a,junk\n"),
    ],
)
def test_relevance_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    judged = read_relevance(tmp_path / name, QUERIES, DATABASE)
    assert [(j.positives.tolist(), j.junk.tolist()) for j in judged] == [([0, 1], []), ([1], [0]), ([], [])]


def test_relevance_without_the_query_itself(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"a": ["a", "c"]}')
    judged = read_relevance(tmp_path / "r.json", DATABASE, DATABASE, leave_self_out=True)
    assert [(j.positives.tolist(), j.junk.tolist()) for j in judged] == [([2], [0]), ([], [1]), ([], [2])]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.json", "[]", "must be an object of queries, received list"),
        ("r.json", '{"one": "a"}', "the query 'one' must have a list of names"),
        ("r.json", '{"one": {"relevent": ["a"]}}', "must have a list of names, or 'relevant' and 'junk'"),
        ("r.json", '{"one": ["zz"]}', "1 of the 1 images that .* names are not in the database; the first is 'zz'"),
        ("r.json", '{"onne": ["a"]}', "not in the queries; the first is 'onne'. Did you mean 'one'"),
        ("r.json", '{"one": {"relevant": ["a"], "junk": ["a"]}}', "'a.jpg' is both relevant and junk"),
        ("r.csv", "one", "line 1: 'one' must be a query, an image"),
        ("r.csv", "one,a\none,b,perhaps", "line 2: 'one,b,perhaps'"),
    ],
)
def test_mistakes_in_relevance_files(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        read_relevance(tmp_path / name, QUERIES, DATABASE)
