"""A study that is killed anywhere, stopped or started twice ends as if nothing had happened."""

import signal
from pathlib import Path
from typing import Any

import pytest

from carp.files.lock import LockHeldError, held
from carp.studies.job_result import read_all
from carp.studies.study_folder import lock_of
from tests.faults.conftest import Server, wait_until
from tests.helpers import steps_of, tiny_images, write_images, write_recipe

NAMES = ["8-seed0", "16-seed0"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Two jobs of 48 and 24 steps, except --out."""
    folder = tmp_path_factory.mktemp("study")
    images = write_images(folder / "images", tiny_images(64), classes=2)
    recipe = write_recipe(folder / "tiny.yaml", epochs=6, checkpoint_steps=2)
    return ["ablate", "batch-size", "--data", images, "--recipe", recipe, "--values", "8,16", "--seeds", "0"]


@pytest.fixture(scope="module")
def undisturbed(carp: Server, words: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    code, output = carp.run(*words, "--out", out)
    assert code == 0, output
    return out / "batch-size"


def what_counts(folder: Path) -> dict[str, Any]:
    """Everything in the results and the metrics that does not depend on time."""
    free = {"seconds", "resumed_at"}
    results = {result.job.name: result.model_dump(exclude=free) for result in read_all(folder)}
    return {name: (found, (folder / name / "metrics.jsonl").read_bytes()) for name, found in results.items()}


def test_a_killed_job_resumes_and_a_finished_one_is_not_repeated(
    carp: Server, words: list[object], undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "batch-size"
    child = carp.start(*words, "--out", tmp_path)
    wait_until(lambda: max(steps_of(folder / NAMES[0]), default=0) >= 10, "a checkpoint of the first job")
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert read_all(folder) == []
    child = carp.start(*words, "--out", tmp_path)
    wait_until(lambda: max(steps_of(folder / NAMES[1]), default=0) >= 6, "a checkpoint of the second job")
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    (first,) = read_all(folder)
    assert first.job.name == NAMES[0]
    assert 10 <= first.resumed_at < 48
    written = (folder / NAMES[0] / "job.json").stat().st_mtime_ns
    code, output = carp.run(*words, "--out", tmp_path)
    assert code == 0, output
    assert "resuming at step" in output
    assert "job 2 of 2: batch size 16, seed 0" in output
    assert "job 1 of 2" not in output
    assert (folder / NAMES[0] / "job.json").stat().st_mtime_ns == written
    assert what_counts(folder) == what_counts(undisturbed)
    assert sorted(what_counts(folder)) == sorted(NAMES)
    assert not any((folder / name / "checkpoints").exists() for name in NAMES)


@pytest.mark.slow
def test_kills_at_writes_of_every_stage(carp: Server, words: list[object], tmp_path: Path) -> None:
    """In training, features, the result, the removal of the checkpoints and the table."""
    folder = tmp_path / "batch-size"
    short = [*words, "--out", tmp_path, "--values", "16", "epochs=1", "checkpoint_steps=1000"]
    kills = 0
    for number in range(3, 100, 5):
        child = carp.start(*short, die_at=number)
        code = child.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL, child.output
        kills += 1
    assert kills >= 3
    assert [result.job.name for result in read_all(folder)] == [NAMES[1]]
    assert not (folder / NAMES[1] / "checkpoints").exists()
    assert (folder / "table.md").exists()
    assert (folder / "plot.png").exists()


@pytest.mark.slow
def test_a_stopped_study_says_so_and_resumes(
    carp: Server, words: list[object], undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "batch-size"
    child = carp.start(*words, "--out", tmp_path)
    wait_until(lambda: max(steps_of(folder / NAMES[0]), default=0) >= 4, "a checkpoint")
    child.send(signal.SIGTERM)
    assert child.wait() == 143, child.output
    assert "everything is saved. Rerun the same command to resume." in child.output
    code, output = carp.run(*words, "--out", tmp_path)
    assert code == 0, output
    assert what_counts(folder) == what_counts(undisturbed)


@pytest.mark.slow
def test_two_processes_share_the_jobs(carp: Server, words: list[object], undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "batch-size"
    children = [carp.start(*words, "--out", tmp_path) for _ in range(2)]
    for child in children:
        assert child.wait() == 0, child.output
    begun = [
        line.split(": ")[1].split(", seed")[0] for c in children for line in c.output.splitlines() if "job " in line[:4]
    ]
    assert sorted(begun) == ["batch size 16", "batch size 8"]  # each once
    assert what_counts(folder) == what_counts(undisturbed)
    rows = (folder / "table.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["value", "8", "16"]


def is_free(folder: Path, name: str) -> bool:
    try:
        with held(lock_of(folder, name)):
            return True
    except LockHeldError:
        return False


@pytest.mark.slow
def test_side_by_side_killed_and_stopped(carp: Server, words: list[object], undisturbed: Path, tmp_path: Path) -> None:
    """`--jobs 2`: the copies end with the command, pass through its signals, and do each job once."""
    folder = tmp_path / "batch-size"
    together = [*words, "--out", tmp_path, "--jobs", "2"]
    child = carp.start(*together)
    wait_until(lambda: all(steps_of(folder / name) for name in NAMES), "both jobs at once", seconds=180)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    wait_until(lambda: all(is_free(folder, name) for name in NAMES), "the end of the copies")
    child = carp.start(*together)
    wait_until(lambda: any(not is_free(folder, name) for name in NAMES), "a copy at work", seconds=180)
    child.send(signal.SIGINT)
    assert child.wait() == 130, child.output
    assert "everything is saved" in child.output
    assert "Traceback" not in child.output
    code, output = carp.run(*together)
    assert code == 0, output
    assert "[1] " in output
    assert "[2] " in output
    assert output.count("Batch size: k-NN") == 1  # the table, once
    assert what_counts(folder) == what_counts(undisturbed)
