"""`carp eval`: what it prints and writes, and its mistakes."""

import json
import shutil
from pathlib import Path

import pytest

import carp
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images


def test_eval_in_a_folder_that_is_no_run(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    assert_one_line(cli("eval", "knn", tmp_path, "--data", labelled), str(tmp_path), "not a run folder", "--out")
    assert_one_line(cli("eval", "knn", tmp_path / "nowhere", "--data", labelled), "nowhere", "no folder")
    assert list(tmp_path.iterdir()) == []


def test_eval_of_a_run_without_a_checkpoint(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy), "no checkpoint")


def test_eval_of_a_run_whose_description_is_damaged(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    for content in ("{", "[]", '{"data": {}}'):
        copy = Path(shutil.copytree(run, tmp_path / str(len(content)), ignore=shutil.ignore_patterns("checkpoints")))
        (copy / "run.json").write_text(content)
        assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy / "run.json"))


def test_eval_with_an_unknown_protocol(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "kn", run, "--data", labelled), "'kn'", "Did you mean 'knn'?")
    assert not (run / "results").exists()


def test_eval_without_labels(cli: Cli, run: Path, flat: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, "--data", flat), str(flat), "no labels", "sub-folder per class")
    assert_one_line(cli("eval", "knn", run, "--data", labelled, "--test", flat), str(flat), "no labels")


def test_eval_with_other_classes(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", tiny_images(16), classes=4)
    result = cli("eval", "knn", run, "--data", labelled, "--test", other)
    assert_one_line(result, "different classes", "'class-3' is only in", str(other))


def test_eval_with_more_neighbours_than_images_is_refused_before_anything_is_encoded(
    cli: Cli, run: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("extract", "raw_pixels"):
        monkeypatch.setattr(f"carp.commands.evaluate.{name}", lambda *_, **__: pytest.fail("something was encoded"))
    words = ["eval", "knn", run, "--data", labelled, "--baselines"]
    assert_one_line(cli(*words, "--k", 66), "k = 66", "67 images", "received 66", "Lower k")
    assert_one_line(cli(*words, "--k", 67, "--test", labelled), "k = 67", "67 images", "received 66", "Lower k")
    with pytest.raises(carp.errors.DataError, match=r"k must be at least 1, received 0\."):
        carp.evaluate("knn", run, labelled, k=0)


def test_eval_shows_how_far_it_is_and_python_does_not_unless_asked(
    cli: Cli,
    run: Path,
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    monkeypatch.setattr("carp.training.display._SECONDS_BETWEEN_LINES", 0.0)
    code, _, err = cli("eval", "knn", copy, "--data", labelled, "--baselines", "--k", 5)
    assert code == 0, err
    names = ["raw pixels", "untrained encoder", "student", "teacher"]
    assert err.splitlines() == [f"{name}, {labelled}: 66/66  0:00:00 left" for name in names]
    carp.evaluate("knn", copy, labelled, k=5)
    assert capsys.readouterr() == ("", "")
    carp.evaluate("knn", copy, labelled, k=5, quiet=False)
    assert "student, " in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "66/66" in cli("eval", "knn", copy, "--data", labelled, "--k", 5)[2]
    carp.evaluate("knn", copy, labelled, k=5)
    assert capsys.readouterr() == ("", "")


def test_eval_with_a_temperature_of_zero(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, "--data", labelled, "--temperature", 0), "temperature", "received 0")


def test_eval_writes_and_prints_what_it_found(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    code, out, err = cli("eval", "knn", copy, "--data", labelled, "--baselines", "--k", 5)
    assert code == 0, err
    result = json.loads((copy / "results" / "knn.json").read_text())
    assert list(result["values"]) == ["raw pixels", "untrained encoder", "student", "teacher"]
    for name, value in result["values"].items():
        assert 0 <= value <= 1
        assert name in out
        assert f"{100 * value:.1f}" in out
    assert result["settings"]["k"] == 5
