"""`carp eval detection` through the command line."""

import json
from pathlib import Path

import pytest

import carp
from carp.evaluation.result import read_result
from tests.commands.conftest import Cli, assert_one_line
from tests.evaluation.voc_tree import write_voc

SMALL = (
    "iterations=3", "batch_size=2", "trials=1", "warmup=1", "sizes=[48,64]", "max_size=96", "test_size=64",
    "anchor_sizes=[16,32]", "workers=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voc(tmp_path_factory.mktemp("voc"))


def test_a_run(cli: Cli, run: Path, voc: Path, tmp_path: Path) -> None:
    words = ("eval", "detection", run, "--data", voc, "--out", tmp_path, "--device", "cpu", *SMALL)
    code, out, _ = cli(*words)
    assert code == 0
    assert "ap75" in out.lower()
    (file,) = (tmp_path / "results").iterdir()
    result = read_result(file)
    assert file.name.startswith("detection-2007_trainval_2012_trainval-teacher-")
    assert result.data["name"] == "2007:trainval 2012:trainval", "VOC07+12 has 16,551 images, this has a few"
    assert (result.model["name"], result.model["branch"]) == (run.name, "teacher")
    assert result.settings["iterations"] == 3
    before = json.loads(file.read_text())["values"]
    assert cli(*words)[0] == 0  # found
    assert read_result(file).values == before


def test_parts_to_test_on_are_a_setting_or_an_option(cli: Cli, run: Path, voc: Path, tmp_path: Path) -> None:
    words = ("eval", "detection", run, "--data", voc, "--device", "cpu", *SMALL, "train=2007:trainval")
    for number, more in enumerate((["test=[2007:trainval,2007:test]"], ["--test", "2007:trainval,2007:test"])):
        code, out, err = cli(*words, *more, "--out", tmp_path / str(number))
        assert code == 0, err
        assert "test: 2007:trainval 2007:test" in out
        (file,) = (tmp_path / str(number) / "results").iterdir()
        assert read_result(file).data["test"] == "2007:trainval 2007:test"


def test_an_export_stands_for_its_run(cli: Cli, run: Path, voc: Path, tmp_path: Path) -> None:
    file = carp.export(run, tmp_path / "encoder.safetensors", format="safetensors").path
    found = []
    for model, out in ((run, tmp_path / "a"), (file, tmp_path / "b")):
        assert cli("eval", "detection", model, "--data", voc, "--out", out, "--device", "cpu", *SMALL)[0] == 0
        found.append(read_result(next((out / "results").iterdir())))
    assert found[0].model == found[1].model
    assert found[0].values == found[1].values
    assert (found[0].model["branch"], found[0].model["epochs"]) == ("teacher", 2)


def test_mistakes(cli: Cli, run: Path, voc: Path, tmp_path: Path) -> None:
    words = ("eval", "detection", run, "--out", tmp_path, "--data")
    assert_one_line(cli(*words, voc, "iteration=3"), "no setting 'iteration'", "Did you mean 'iterations'?")
    assert_one_line(cli(*words, voc, "lr=fast"), "lr must be a valid number", "'fast'")
    assert_one_line(cli(*words, voc, "train=2012:val"), "VOC 2012:val", "No such file")
    assert_one_line(cli(*words, voc, "--test", "2012:val"), "VOC 2012:val", "No such file")
    assert_one_line(cli(*words, voc, "--size", 96), "Did you mean '--sizes'?", "--test-size")
    assert_one_line(cli(*words, tmp_path / "none"), "there is no folder")
    assert_one_line(cli("eval", "detection", "--data", voc), "give a run folder")
    assert_one_line(cli("eval", "detecton", run, "--data", voc), "Did you mean 'detection'?")
