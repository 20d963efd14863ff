"""Photographs come from worker processes: these must not outlive, block or garble the run."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.faults.conftest import Child, Server, wait_until
from tests.helpers import steps_of, tiny_images, write_images

SETTINGS = ["global_size=72", "workers=2", "blur=[0, 0, 0]"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    large = np.repeat(np.repeat(tiny_images(64, 20), 4, axis=1), 4, axis=2)
    return write_images(tmp_path_factory.mktemp("photos"), large)


def workers_of(child: Child) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]


@pytest.mark.parametrize("whole_group", [False, True], ids=["to the run alone", "to its workers too"])
def test_a_signal_ends_a_run_with_workers_and_the_workers(
    carp: Server, photos: Path, recipe: Path, tmp_path: Path, whole_group: bool
) -> None:
    """`timeout` and batch systems signal the whole group: the workers must not die before the state is saved."""
    out = tmp_path / "run"
    child = carp.start("train", photos, "--recipe", recipe, "--out", out, *SETTINGS)
    wait_until(lambda: "step 1/160" in child.output, "the first step")
    workers = workers_of(child)
    assert len(workers) >= 2
    for pid in workers if whole_group else []:
        os.kill(pid, signal.SIGTERM)
    child.send(signal.SIGTERM)
    assert child.wait(seconds=40) == 143, child.output
    assert child.output.count("everything is saved") == 1
    assert "Traceback" not in child.output
    assert steps_of(out)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers are gone", seconds=20)


def test_a_killed_run_leaves_no_workers_behind(carp: Server, photos: Path, recipe: Path, tmp_path: Path) -> None:
    child = carp.start("train", photos, "--recipe", recipe, "--out", tmp_path / "run", *SETTINGS)
    wait_until(lambda: "step 1/160" in child.output, "the first step")
    workers = workers_of(child)
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers are gone", seconds=30)


def test_a_killed_run_can_be_continued_at_once(carp: Server, photos: Path, recipe: Path, tmp_path: Path) -> None:
    """Workers outlive a killed run for some seconds; they must not hold its folder."""
    words = ["train", photos, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1", *SETTINGS]
    child = carp.start(*words)
    wait_until(lambda: "step 1/4" in child.output, "the first step")
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    code, output = carp.run(*words)
    assert code == 0, output
