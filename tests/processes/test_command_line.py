"""`carp train --procs 2`, as a person types it: a whole run, an error, Ctrl-C."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carp.studies.job_result import read_all
from tests.helpers import assert_same_run, steps_of, tiny_images, write_images
from tests.processes.conftest import ENVIRONMENT, distance, losses, own_lines, torchrun


def carp_words(folder: Path, out: Path, *words: str) -> list[str]:
    train = ["train", str(folder / "images"), "--recipe", str(folder / "tiny.yaml"), "--out", str(out)]
    return [sys.executable, "-m", "carp", *train, *words]


def carp(folder: Path, out: Path, *words: str, file_limit: int = resource.RLIM_INFINITY) -> tuple[int, str]:
    """Run it to its end: exit code, and both streams together."""
    return run_to_end(carp_words(folder, out, *words), file_limit)


def run_to_end(words: list[str], file_limit: int = resource.RLIM_INFINITY) -> tuple[int, str]:
    done = subprocess.run(
        words,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit)),
    )
    return done.returncode, done.stdout


@contextmanager
def running(folder: Path, out: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run of two processes that has made its first steps, and the file with what it says."""
    said = out.with_suffix(".txt")
    with said.open("w") as output:
        process = subprocess.Popen(
            carp_words(folder, out, "--procs", "2", "epochs=400", "checkpoint_steps=10000"),
            env=ENVIRONMENT,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + 90
            while not (out / "metrics.jsonl").exists() or not losses(out):
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < end
                time.sleep(0.02)
            yield process, said
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.slow
def test_ctrl_c_is_answered_at_once_and_stops_all_after_one_save(folder: Path, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes of the group, and torchrun passes it on once more."""
    with running(folder, tmp_path / "run") as (process, file):
        os.killpg(process.pid, signal.SIGINT)
        code, said = process.wait(timeout=60), file.read_text()
    assert code == 130, said
    stopping, line = own_lines(said)  # at once, then when everything is saved
    assert "stopping" in stopping
    (step,) = steps_of(tmp_path / "run")
    assert f"stopped by SIGINT after step {step} of 1600; everything is saved" in line
    assert "Traceback" not in said
    assert "death signal" not in said, "torchrun's own words"


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_after_one_save_and_is_told_once(folder: Path, tmp_path: Path) -> None:
    with running(folder, tmp_path / "run") as (process, file):
        os.kill(processes_of(process)[1], signal.SIGTERM)
        code, said = process.wait(timeout=60), file.read_text()
    assert code == 143, said
    (line,) = own_lines(said)
    assert "everything is saved" in line
    assert len(steps_of(tmp_path / "run")) == 1


@pytest.mark.slow
def test_a_killed_process_ends_all_and_is_named(folder: Path, tmp_path: Path) -> None:
    with running(folder, tmp_path / "run") as (process, file):
        os.kill(processes_of(process)[1], signal.SIGKILL)
        code, said = process.wait(timeout=60), file.read_text()
    assert code == 6, said
    lost, killed = own_lines(said)
    assert "process 0 of 2 lost another process" in lost
    assert "process 1 of 2 was killed by SIGKILL" in killed
    assert "Traceback" not in said


def processes_of(launcher: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    assert len(children) == 2
    return [int(pid) for pid in children]


@pytest.mark.slow
def test_a_whole_run_with_procs_is_the_run_of_torchrun_and_of_one_process(folder: Path, tmp_path: Path) -> None:
    code, said = carp(folder, tmp_path / "procs", "--procs", "2")
    assert code == 0, said
    assert said.count("run: ") == 1
    assert "2 processes" in said
    assert "Traceback" not in said
    assert "Warning" not in said
    words = ["-m", "carp", "train", folder / "images", "--recipe", folder / "tiny.yaml", "--out"]
    code, said = torchrun(2, *words, tmp_path / "torchrun")
    assert code == 0, said
    assert_same_run(tmp_path / "procs", tmp_path / "torchrun")
    code, said = carp(folder, tmp_path / "one")
    assert code == 0, said
    assert losses(tmp_path / "procs") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert distance(tmp_path / "procs", tmp_path / "one") < 1e-5
    code, said = carp(folder, tmp_path / "one", "--procs", "2")
    assert code == 0, said
    assert said.count("is finished") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["num_prototypes=97"], "num_prototypes"),
        (["prototypes=sharded", "prototype_shards=3"], "prototype_shards"),
        (["batch_size=1"], "batch_size"),
        (["--recipe", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_told_once(folder: Path, tmp_path: Path, words: list[str], told: str) -> None:
    code, said = carp(folder, tmp_path / "run", "--procs", "2", *words)
    assert code == 2, said
    (line,) = said.splitlines()
    assert line.startswith("carp: error: ")
    assert told in line


@pytest.mark.slow
def test_a_full_disk_is_told_once_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    code, said = carp(folder, tmp_path / "run", "--procs", "2", file_limit=20_000)
    assert code == 2, said
    (line,) = own_lines(said)
    assert "cannot write the checkpoint" in line
    assert "Traceback" not in said


@pytest.mark.slow
def test_two_processes_share_every_job_of_a_study(folder: Path, tmp_path: Path) -> None:
    labelled = write_images(tmp_path / "labelled", tiny_images(), classes=2)
    words = ["ablate", "momentum", "--data", str(labelled), "--recipe", str(folder / "tiny.yaml"), "--values", "0,0.9"]
    found = {}
    for name, more in (("two", ["--procs", "2"]), ("one", [])):
        command = [sys.executable, "-m", "carp", *words, "--seeds", "0", "--out", str(tmp_path / name), *more]
        code, said = run_to_end(command)
        assert code == 0, said
        assert said.count("job 1 of 2: momentum η 0, seed 0") == 1
        assert said.count("Momentum of the teacher: k-NN") == 1
        assert ("2 processes" in said) == (name == "two")
        found[name] = read_all(tmp_path / name / "momentum")
    for ours, theirs in zip(found["two"], found["one"], strict=True):
        assert ours.job.name == theirs.job.name
        assert ours.kl_to_uniform == pytest.approx(theirs.kl_to_uniform, rel=1e-3)
        assert ours.accuracies.keys() == theirs.accuracies.keys()
