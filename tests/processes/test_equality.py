"""The result does not depend on how many processes share the work."""

import math
from pathlib import Path

import pytest

import carp
from carp.runs import checkpoint
from tests.helpers import assert_same_bits, final_tensors, steps_of
from tests.processes import checks
from tests.processes.conftest import distance, losses, torchrun
from tests.processes.runs import AUTHORS, BATCH_NORM, SHARDED, without_batch_norm


def alone(folder: Path, name: str, **settings: object) -> Path:
    carp.train(folder / "images", folder / name, folder / "tiny.yaml", quiet=True, **settings)
    return folder / name


@pytest.fixture(scope="module")
def one(folder: Path) -> Path:
    return alone(folder, "one")


@pytest.fixture(scope="module")
def three(folder: Path) -> Path:
    """Also runs what is checked inside the processes."""
    code, output = torchrun(3, "-m", "tests.processes.runs", "equality", folder)
    assert code == 0, output
    assert output.count("passed:") == len(checks.CHECKS)
    return folder / "three"


def test_three_processes_end_where_one_does(one: Path, three: Path) -> None:
    assert len(losses(one)) == 16
    assert losses(three) == pytest.approx(losses(one), rel=1e-5)
    assert distance(three, one) < 1e-5
    assert distance(three, one) > 0, "nothing was shared"


def test_a_signal_to_one_process_stops_all_and_one_process_continues(folder: Path, three: Path, one: Path) -> None:
    stopped = folder / "stopped"
    assert steps_of(stopped) == [10]
    assert checkpoint.load(stopped / "checkpoints" / "step-00000010").state["processes"] == 3
    carp.train(folder / "images", stopped, folder / "tiny.yaml", quiet=True)
    assert losses(stopped) == pytest.approx(losses(one), rel=1e-5)
    assert distance(stopped, one) < 1e-5


def test_three_processes_with_a_shard_each_end_where_one_with_all_does_and_one_continues(
    folder: Path, three: Path
) -> None:
    whole = alone(folder, "whole", **SHARDED)
    assert losses(folder / "sharded") == pytest.approx(losses(whole), rel=1e-5)
    assert distance(folder / "sharded", whole) < 1e-5
    prototypes = final_tensors(folder / "sharded")["model.student.assigner.directions_KD"]
    assert len(prototypes) == 96
    assert steps_of(folder / "sharded-stopped")[-1] == 9
    alone(folder, "sharded-stopped", **SHARDED)
    assert losses(folder / "sharded-stopped") == pytest.approx(losses(whole), rel=1e-5)
    assert distance(folder / "sharded-stopped", whole) < 1e-5


def test_three_processes_with_batch_norm_end_where_one_does(folder: Path, three: Path) -> None:
    alone(folder, "batch_norm", **BATCH_NORM)
    assert losses(folder / "synchronised") == pytest.approx(losses(folder / "batch_norm"), rel=1e-5)
    assert distance(folder / "synchronised", folder / "batch_norm") < 1e-5
    assert any("running_var" in name for name in final_tensors(folder / "synchronised"))


def test_three_processes_with_the_authors_reading_end_where_one_does(folder: Path, three: Path) -> None:
    alone(folder, "authors-alone", **AUTHORS)
    assert losses(folder / "authors") == pytest.approx(losses(folder / "authors-alone"), rel=1e-5)
    assert distance(folder / "authors", folder / "authors-alone") < 1e-5


def test_three_processes_with_shards_and_independent_micro_batches_train(folder: Path, three: Path) -> None:
    curve = losses(folder / "authors-sharded")
    assert len(curve) == 8
    assert all(0 < loss < 2 * math.log(8) for loss in curve)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["optimiser=adamw", "lr=0.001"]])
def test_two_processes_end_where_one_does(folder: Path, tmp_path: Path, settings: list[str]) -> None:
    words = ["-m", "carp", "train", folder / "images", "--recipe", folder / "tiny.yaml", *settings, "--out"]
    code, output = torchrun(2, *words, tmp_path / "two")
    assert code == 0, output
    code, output = torchrun(1, *words, tmp_path / "one")
    assert code == 0, output
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert distance(tmp_path / "two", tmp_path / "one") < 1e-5


@pytest.mark.slow
def test_micro_batches_of_two_processes_change_nothing_where_there_is_no_batch_norm(folder: Path) -> None:
    code, output = torchrun(2, "-m", "tests.processes.runs", "micro_batches", folder)
    assert code == 0, output
    with without_batch_norm():
        one = alone(folder, "micro-one", epochs=2)
    assert losses(folder / "micro") == pytest.approx(losses(one), rel=1e-5)
    assert distance(folder / "micro", one) < 1e-5


@pytest.mark.slow
def test_a_run_that_is_stopped_and_continued_by_as_many_processes_ends_in_the_same_bits(
    folder: Path, tmp_path: Path
) -> None:
    words = ["-m", "tests.processes.runs", "command_line", folder, 0]
    code, output = torchrun(2, *words, "killed", "--out", tmp_path / "run")
    assert code != 0
    code, output = torchrun(2, *words, "", "--out", tmp_path / "run")
    assert code == 0, output
    code, output = torchrun(2, *words, "", "--out", tmp_path / "unbroken")
    assert code == 0, output
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "unbroken"))
