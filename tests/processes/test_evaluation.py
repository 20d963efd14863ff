"""Embedding and evaluation give the same numbers however many processes share them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from tests.helpers import write_images
from tests.processes.conftest import torchrun
from tests.processes.runs import BATCH_NORM, evaluate_all

CLASSES, IMAGES = 7, 77


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Path:
    """A folder with a run, labelled images, and what three processes found."""
    rng = np.random.default_rng(1)
    colours = 128 + rng.normal(0, 40, (CLASSES, 1, 1, 3))
    labels = np.arange(IMAGES) % CLASSES
    images = colours[labels] + rng.normal(0, 15, (IMAGES, 1, 1, 3)) + rng.normal(0, 20, (IMAGES, 32, 32, 3))
    write_images(folder / "labelled", np.clip(images, 0, 255).astype(np.uint8), classes=CLASSES)
    carp.train(folder / "images", folder / "evaluated-run", folder / "tiny.yaml", quiet=True, **BATCH_NORM)
    code, output = torchrun(3, "-m", "tests.processes.runs", "evaluation", folder)
    assert code == 0, output
    return folder


def assert_same(ours: Any, theirs: Any, name: str) -> None:
    """Assert that values, details and predicted classes are equal, and scores up to rounding.

    The product of fewer rows or classifiers is rounded differently, and training adds up such differences.
    """
    if not isinstance(theirs, list):
        assert ours == theirs, name
        return
    *same, predicted = theirs
    assert ours[:-1] == same, name
    assert ours[-1].keys() == predicted.keys()
    for end, (classes, scores) in predicted.items():
        assert ours[-1][end][0] == classes, name
        assert ours[-1][end][1] == pytest.approx(scores, rel=0, abs=1e-5), name


def test_three_processes_find_what_one_does(evaluated: Path, tmp_path: Path) -> None:
    ours = json.loads((evaluated / "evaluated.json").read_text())
    theirs = evaluate_all(evaluated, tmp_path)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert_same(ours[name], value, name)
    assert 0.2 < theirs["large"][0]["top1@20"] < 0.95, "too easy, or chance: nothing is compared"
    assert 0.2 < theirs["linear"][0]["best_top1_on_test"] < 1
    assert len(theirs["large"][2]["@20"][0]) == 1300
    assert len(theirs["linear"][2][""][0]) > 10
    assert len({row["test_top1"] for row in theirs["linear"][1]["grid"]}) > 1


def test_the_linear_evaluation_of_three_processes_is_continued_by_one(evaluated: Path) -> None:
    ours = evaluate_all(evaluated, evaluated / "interrupted", only=["linear"])
    assert_same(ours["linear"], json.loads((evaluated / "evaluated.json").read_text())["linear"], "linear")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["knn"], ["linear", "--cached", "epochs=2"], ["linear", "epochs=1"]])
def test_only_the_first_process_speaks_and_writes(evaluated: Path, tmp_path: Path, words: list[str]) -> None:
    values = []
    for processes in (2, 1):
        out = tmp_path / str(processes)
        where = [evaluated / "evaluated-run", "--data", evaluated / "labelled", "--out", out, "--branch", "teacher"]
        code, output = torchrun(processes, "-m", "carp", "eval", words[0], *where, *words[1:])
        assert code == 0, output
        assert output.count("results: ") == 1
        assert "Traceback" not in output
        assert "Warning" not in output
        (result,) = (out / "results").iterdir()
        values.append(json.loads(result.read_text())["values"])
        assert not (out / "linear").exists()
    assert values[0] == values[1]
