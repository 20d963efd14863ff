"""`carp eval paper`: the tables that the data allow, the rest named, nothing computed twice, no failure contagious."""

import inspect
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main

import carp
from carp.cli import entry  # noqa: F401 - adds the commands
from carp.cli.app import app
from carp.errors import CarpError
from tests.commands import paper_root
from tests.commands.conftest import Cli, assert_one_line
from tests.commands.paper_root import TEST, shrink_rows, write_others, write_root
from tests.processes.conftest import torchrun

EVALUATIONS = {("knn", "pets"), ("knn", "gtsrb"), ("kmeans", "gtsrb"), ("kmeans", "cifar10")}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy it before you change it."""
    return write_root(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_rows(monkeypatch)


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    results = shutil.ignore_patterns("results")  # other tests evaluate the same run
    return Path(shutil.copytree(run, tmp_path / "own", ignore=results))


def written(run: Path) -> dict[tuple[str, str], tuple[Path, dict[str, Any]]]:
    found = {path: json.loads(path.read_text()) for path in (run / "results").glob("*.json")}
    return {(one["protocol"], one["request"]["data"].split(":")[1]): (path, one) for path, one in found.items()}


def test_tables_with_published_rows_and_differences_and_what_is_missing(
    cli: Cli, own_run: Path, datasets: Path
) -> None:
    code, out, err = cli("eval", "paper", own_run, "--root", datasets)
    assert code == 0, err
    results = written(own_run)
    assert set(results) == EVALUATIONS
    knn, full, kmeans = out.index("Transfer learning, k-NN top-1, "), out.index("for every k"), out.index("Clustering")
    assert out.count("own (teacher)  ") == 3
    # Differences are to the published rows of 400 epochs, with and without multi-crop
    top1 = 100 * results["knn", "pets"][1]["values"]["top1@20"]
    for name, published in (("CARP, 400 epochs", 86.8), ("CARP (mc), 400 epochs", 83.9)):
        (line,) = [line for line in out[knn:full].splitlines() if f"own (teacher) − {name}" in line]
        assert f"{top1 - published:+.1f}" in line.split()
    (line,) = [line for line in out[kmeans:].splitlines() if "own (teacher) − CARP" in line]
    assert f"{100 * results['kmeans', 'gtsrb'][1]['values']['nmi'] - 54.8:+.1f}" in line.split()
    assert "MoCo-v3" in out[knn:full]
    # The plan comes first: how long every table takes, and how to get what is missing
    plan = err[: err.index("1 of 4: ")]
    assert "in total: 4 evaluations to do, about " in plan
    assert any(line.split()[:5] == ["knn,", "knn-full", "2", "of", "8"] for line in plan.splitlines())
    assert "missing: aircraft: python -c " in plan
    assert "missing: voc0712: python -c " in plan
    assert f"there is no {datasets}/imagenet" in plan or "missing: imagenet: register at" in plan
    assert all(f"{number} of 4: " in err for number in range(1, 5))


def test_retrieval_copies_and_few_shot(cli: Cli, own_run: Path, tmp_path: Path) -> None:
    root = write_others(tmp_path / "root")
    words = [word for name in ("retrieval", "copies", "few-shot") for word in ("--only", name)]
    code, out, err = cli("eval", "paper", own_run, "--root", root, *words)
    assert code == 0, err
    found = {one["protocol"]: one for _, one in written(own_run).values()}
    assert {name: one["data"]["name"] for name, one in found.items() if name != "few-shot"} == {
        "retrieval": "roxford5k",
        "copies": "copydays",
    }
    assert found["retrieval"]["settings"] | {"max_side": 512, "multi_scale": True} == found["retrieval"]["settings"]
    for title, value, published in (
        ("Image retrieval", found["retrieval"]["values"]["map_medium"], 38.8),
        ("Copy detection", found["copies"]["values"]["map_strong"], 84.0),
        ("Few-shot", found["few-shot"]["values"]["map@1"], 47.1),
    ):
        lines = out[out.index(title) :].splitlines()
        line = next(line for line in lines if "own (teacher) − CARP" in line)
        assert f"{100 * value - published:+.1f}" in line.split(), title
    for name in ("rparis6k", "inat2018"):
        assert f"missing: {name}: " in err
    code, _, err = cli("eval", "paper", own_run, "--root", root, *words)
    assert "in total: all is done" in err


def test_the_same_command_computes_nothing_again(cli: Cli, own_run: Path, datasets: Path) -> None:
    words = ("eval", "paper", own_run, "--root", datasets, "--only", "kmeans")
    assert cli(*words)[0] == 0
    before = {path: path.read_bytes() for path, _ in written(own_run).values()}
    code, out, err = cli(*words)
    assert code == 0
    assert "in total: all is done" in err
    assert "own (teacher)" in out
    assert {path: path.read_bytes() for path, _ in written(own_run).values()} == before
    first, second = (carp.evaluate_paper(own_run, datasets, only="knn") for _ in range(2))
    assert first.notes == second.notes
    assert any("too few images for k = 100, 200" in note for note in second.notes)
    assert first.tables == second.tables
    before = {path: path.read_bytes() for path, one in written(own_run).values() if one["protocol"] == "kmeans"}
    # Other weights or another transform are another evaluation
    for more in (("--branch", "student"), ("--size", 24)):
        code, out, err = cli(*words, *more)
        assert "in total: 2 evaluations to do" in err
    assert len(list((own_run / "results").glob("kmeans-*.json"))) == 3 * len(before)


def test_a_result_of_another_command_counts_and_a_damaged_one_does_not(cli: Cli, own_run: Path, datasets: Path) -> None:
    single = ("eval", "knn", own_run, "--data", "dataset:pets", "--root", datasets, "--branch", "teacher")
    assert cli(*single)[0] == 0
    done = carp.evaluate_paper(own_run, datasets, only="knn", dry_run=True)
    assert {one.name for one in done.evaluations if one.state == "done"} == {"pets"}
    (path,) = (own_run / "results").glob("*.json")
    path.write_text(path.read_text()[:-20])
    done = carp.evaluate_paper(own_run, datasets, only="knn", dry_run=True)
    assert not [one for one in done.evaluations if one.state == "done"]
    assert cli(*single, "temperature=0.5")[0] == 0
    done = carp.evaluate_paper(own_run, datasets, only="knn", dry_run=True)
    assert not [one for one in done.evaluations if one.state == "done"]


def test_a_dry_run_writes_nothing(cli: Cli, own_run: Path, datasets: Path) -> None:
    before = sorted(own_run.rglob("*"))
    code, out, err = cli("eval", "paper", own_run, "--root", datasets, "--dry-run")
    assert (code, err) == (0, "")
    assert "in total: 4 evaluations to do" in out
    assert sorted(own_run.rglob("*")) == before


@pytest.mark.slow
def test_a_killed_command_continues(cli: Cli, own_run: Path, datasets: Path) -> None:
    words = ["eval", "paper", str(own_run), "--root", str(datasets)]
    process = subprocess.Popen(
        [sys.executable, "-m", paper_root.__name__, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    end = time.monotonic() + 240
    while not list((own_run / "results").glob("[!.]*.json")):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < end
        time.sleep(0.001)
    process.kill()
    process.wait()
    before = {path: path.read_bytes() for path in (own_run / "results").glob("[!.]*.json")}
    assert 0 < len(before) < len(EVALUATIONS)
    code, _, err = cli(*words)
    assert code == 0, err
    assert f"in total: {len(EVALUATIONS) - len(before)} evaluation" in err
    assert set(written(own_run)) == EVALUATIONS
    assert {path: path.read_bytes() for path in before} == before


def test_damaged_data_fail_alone_and_are_reported_at_the_end(
    cli: Cli, own_run: Path, datasets: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(datasets, tmp_path / "root"))
    for path in (root / "pets" / "train").rglob("*.png"):  # noticed only when the evaluation runs
        path.write_bytes(b"no image")
    next((root / "cifar10" / "test").rglob("*.png")).unlink()  # noticed at once
    code, out, err = cli("eval", "paper", own_run, "--root", root)
    assert code == 1
    assert set(written(own_run)) == {("knn", "gtsrb"), ("kmeans", "gtsrb")}
    assert "Transfer learning" in out
    assert "Clustering" in out
    for line, words in zip(
        sorted(err.splitlines()[-2:]),
        (
            ("k-NN on Oxford-IIIT Pet failed: ", f"--data dataset:pets --branch teacher --root {root}"),
            ("k-means on CIFAR-10 failed: ", f"test has {TEST - 1} images in {root}, not {TEST}"),
        ),
        strict=True,
    ):
        assert line.startswith("carp: error: ")
        assert all(word in line for word in words), line
    assert "Traceback" not in err
    # Once the data are repaired, only these two are left
    shutil.rmtree(root)
    shutil.copytree(datasets, root)
    code, _, err = cli("eval", "paper", own_run, "--root", root)
    assert code == 0
    assert "in total: 2 evaluations to do" in err


def test_an_error_that_is_no_mistake_of_the_user_does_not_stop_the_others(
    own_run: Path, datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError("out of\nmemory")

    monkeypatch.setattr("carp.evaluation.clustering.kmeans", fails)
    done = carp.evaluate_paper(own_run, datasets)
    assert not done.ok
    assert {(one.evaluation.pair, one.reason) for one in done.failed} == {
        (("kmeans", name), "MemoryError: out of memory.") for name in ("gtsrb", "cifar10")
    }
    assert set(done.tables) == {"knn", "knn-full"}


def test_the_quickest_table_comes_first(own_run: Path, datasets: Path) -> None:
    done = carp.evaluate_paper(own_run, datasets, dry_run=True)
    to_do = [one for one in done.evaluations if one.state == "to do"]
    assert {one.pair for one in to_do} == EVALUATIONS
    tables: dict[str, float] = {}
    for one in to_do:
        assert one.seconds > 0
        tables[one.pair[0]] = tables.get(one.pair[0], 0.0) + one.seconds
    assert sorted(tables, key=lambda name: tables[name]) == list(tables)


@pytest.mark.slow
def test_two_processes_share_every_evaluation(own_run: Path, datasets: Path, tmp_path: Path) -> None:
    words = ("-m", paper_root.__name__, "eval", "paper", own_run, "--root", datasets, "--out", tmp_path / "shared")
    code, output = torchrun(2, *words)
    assert code == 0, output
    assert output.count("in total: 4 evaluations to do") == 1
    alone = carp.evaluate_paper(own_run, datasets, out=tmp_path / "alone")
    shared = {pair: one["values"] for pair, (_, one) in written(tmp_path / "shared").items()}
    assert shared == {one.pair: one.result.values for one in alone.evaluations if one.result is not None}


def test_mistakes_are_one_line(cli: Cli, own_run: Path, datasets: Path, tmp_path: Path) -> None:
    words = ("eval", "paper", own_run, "--root")
    (tmp_path / "empty").mkdir()
    assert_one_line(cli(*words, datasets, "--only", "kmean"), "'kmean' is not a layout", "Did you mean 'kmeans'?")
    assert_one_line(cli(*words, tmp_path / "none"), "is not a folder", "none")
    assert_one_line(cli(*words, tmp_path / "empty"), "no data for knn, ", "carp datasets --root")
    assert_one_line(cli("eval", "paper", tmp_path / "none", "--root", datasets), "no folder or file")
    assert_one_line(cli("eval", "paper", own_run), "--root")
    assert_one_line(cli(*words, datasets, "--branch", "techer"), "Did you mean 'teacher'?")
    assert_one_line(cli(*words, datasets, "--epoch", 9), "no checkpoint at the end of epoch 9", "exist: 2")
    with pytest.raises(CarpError, match="is not a folder"):
        carp.evaluate_paper(own_run, tmp_path / "none")


def test_the_function_has_the_names_and_defaults_of_the_command() -> None:
    root: Any = typer.main.get_command(app)
    words = {p.name: p for p in root.commands["eval"].get_command(None, "paper").params if p.name != "help"}
    parameters = inspect.signature(carp.evaluate_paper).parameters
    assert set(words) == set(parameters) - {"quiet"}
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty:
            assert words[key].required
        elif key in words:
            assert (words[key].default or None) == (parameter.default or None), key
        assert f"    {key}: " in (inspect.getdoc(carp.evaluate_paper) or "")
