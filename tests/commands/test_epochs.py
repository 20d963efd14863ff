"""`RUN@EPOCH` and `--epoch` in every command that takes a run."""

import json
import shutil
from pathlib import Path

import pytest

import carp
from carp.evaluation.result import Result
from carp.features.store import open_store
from carp.report.figures.epoch_curve import epoch_curves
from tests.commands.conftest import Cli, assert_one_line


@pytest.fixture(scope="module")
def kept(labelled: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, both kept."""
    out = tmp_path_factory.mktemp("kept") / "run"
    carp.train(labelled, out, recipe, quiet=True, epochs=2, keep_epochs=1)
    return out


def test_all_epochs_of_one_run_are_a_table_and_a_figure(cli: Cli, kept: Path, labelled: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("eval", "knn", kept, "--epoch", "all", "--data", labelled, "--out", tmp_path, "--baselines", "--k", 20)
    code, out, err = cli(*words)
    assert code == 0, err
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "results").glob("*.json"))]
    model = {(result["model"]["branch"], result["model"].get("epoch")): result for result in results}
    trained = {(branch, epoch) for branch in ("student", "teacher") for epoch in (1, 2)}
    assert set(model) == trained | {("raw pixels", None), ("untrained", None)}
    names = [path.name for path in (tmp_path / "results").glob("*.json")]
    assert sum("teacher-epoch1-" in name for name in names) == 1
    lines = [line.split() for line in out.splitlines()]
    first = lines.index(["epoch", "student", "teacher", "raw", "pixels", "untrained"])
    for epoch, line in ((1, lines[first + 1]), (2, lines[first + 2])):
        branches = (("student", epoch), ("teacher", epoch), ("raw pixels", None), ("untrained", None))
        assert line == [str(epoch), *(f"{100 * model[which]['values']['top1@20']:.1f}" for which in branches)]
    (figure,) = (tmp_path / "results").glob("epochs-knn-*.png")
    assert f"figure: {figure}" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    code, out, err = cli("table", tmp_path)
    assert code == 0, err
    rows = {line.split("  ")[0]: line.split()[2:] for line in out.splitlines()}
    assert {"run@1 (student)", "run@2 (student)", "run@1 (teacher)", "run@2 (teacher)"} <= set(rows)
    assert rows["run@1 (teacher)"][0] == "1"  # its epochs


def test_one_epoch_is_evaluated_as_python_does(cli: Cli, kept: Path, labelled: Path, tmp_path: Path) -> None:
    code, out, err = cli("eval", "knn", f"{kept}@1", "--branch", "teacher", "--data", labelled, "--out", tmp_path)
    assert code == 0, err
    assert "teacher@1" in out
    result = carp.evaluate("knn", kept, labelled, epoch=1, out=tmp_path)
    (file,) = (tmp_path / "results").glob("knn-*-teacher-epoch1-*.json")
    assert json.loads(file.read_text())["values"] == result.values
    assert result.model["epoch"] == result.model["epochs"] == 1
    assert len(list((tmp_path / "features").iterdir())) == 1


def test_features_of_an_epoch_are_searched_with_that_epoch(
    cli: Cli, kept: Path, labelled: Path, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    moved = tmp_path / "run"
    shutil.copytree(kept, moved)
    features, query = tmp_path / "features", next(labelled.rglob("*.png"))
    assert cli("embed", f"{moved}@1", "--data", labelled, "--out", features)[0] == 0
    about = open_store(features).origin.model
    assert (about["epoch"], about["epochs"], about["path"]) == (1, 1, f"{moved}@1")
    assert_one_line(cli("embed", moved, "--epoch", 2, "--data", labelled, "--out", features), "run@1", "run@2")
    assert cli("index", features)[0] == 0
    code, out, err = cli("search", features, query, "--k", 1)
    assert code == 0, err
    assert query.name in out
    moved.rename(tmp_path / "elsewhere")
    assert_one_line(cli("search", features, query), "no longer at", "--model")
    # The epoch is recorded, so a run that was moved is enough
    for words in (("--model", tmp_path / "elsewhere"), ("--model", tmp_path / "elsewhere", "--epoch", 1)):
        assert cli("search", features, query, "--k", 1, *words)[0] == 0
    assert_one_line(cli("search", features, query, "--model", f"{tmp_path / 'elsewhere'}@2"), "is not the model")
    assert_one_line(cli("search", features, query, "--epoch", 1), "needs a run", "Give a run folder")


def test_an_epoch_is_exported_and_knows_it(cli: Cli, kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "early.safetensors"
    code, _, err = cli("export", kept, "--epoch", 1, "--format", "safetensors", "--out", file)
    assert code == 0, err
    loaded = carp.load(file)
    assert loaded.hash == carp.load(f"{kept}@1").hash != carp.load(kept).hash
    assert (loaded.epoch, loaded.epochs) == (1, 1)


def test_copies_are_found_with_an_epoch(cli: Cli, kept: Path, labelled: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    code, _, err = cli("duplicates", labelled, "--model", f"{kept}@1", "--out", tmp_path / "copies")
    assert code == 0, err
    assert open_store(tmp_path / "copies" / "features").origin.model["epoch"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epoch", "3"), ("epoch 3", "1, 2", "keep_epochs")),
        (("--epoch", "1", "--epoch", "3"), ("epoch 3", "1, 2")),
        (("--epoch", "last"), ("--epoch", "whole number", "all", "'last'")),
        (("--epoch", "0"), ("epoch 0", "1, 2")),  # which a run with a start has
        (("--epoch", "-1"), ("--epoch", "'-1'")),
        (("--epoch", "1,"), ("--epoch", "''")),
    ],
)
def test_a_wrong_epoch_is_one_line(
    words: tuple[str, ...], said: tuple[str, ...], cli: Cli, kept: Path, labelled: Path, tmp_path: Path
) -> None:
    assert_one_line(cli("eval", "knn", kept, "--data", labelled, "--out", tmp_path / "out", *words), *said)
    assert not (tmp_path / "out").exists()


def test_epochs_need_a_run(cli: Cli, kept: Path, labelled: Path, tmp_path: Path) -> None:
    features = tmp_path / "features"
    carp.embed(kept, labelled, features)
    for epoch in ("1", "all"):
        words = ("eval", "knn", "--data", features, "--out", tmp_path, "--epoch", epoch)
        assert_one_line(cli(*words), "needs a run", "Give a run folder")
    assert_one_line(cli("eval", "knn", f"{kept}@1", "--epoch", 2, "--data", labelled), "two different epochs")
    assert_one_line(cli("export", "runs/none@2", "--format", "timm", "--out", tmp_path / "x"), "runs/none@2")


def test_a_curve_takes_the_newest_result_of_every_epoch() -> None:
    def result(epoch: int | None, value: float, created: str, branch: str = "teacher") -> Result:
        model = {"name": "run", "branch": branch, **({} if epoch is None else {"epoch": epoch})}
        return Result("knn", {"top1@20": value, "top1@10": 0.1}, data={"train": "pets"}, model=model, created=created)

    results = [result(2, 0.3, "2"), result(1, 0.2, "1"), result(2, 0.1, "1"), result(None, 0.9, "3")]
    (curve,) = epoch_curves([*results, result(None, 0.05, "1", "raw pixels")])
    assert curve.values == {"teacher": {1: 0.2, 2: 0.3}}
    assert curve.baselines == {"raw pixels": 0.05}
    assert curve.epochs == [1, 2]
    assert epoch_curves([result(None, 0.9, "3")]) == []
