"""Processes whose shares differ, by one image or by all, give what one process gives."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.conftest import ENVIRONMENT


def passed(name: str, folder: Path) -> list[str]:
    """What `tests.processes.uneven` says of a run that must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.uneven", name, str(folder)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("passed: ")]


def test_unequal_shares_of_2_3_and_5_processes_give_the_loss_and_the_gradients_of_one(tmp_path: Path) -> None:
    """With 205 images, K = 15,360 and blocks of 512 each process alone would choose another chunk."""
    assert passed("losses", tmp_path) == ["passed: 2", "passed: 3", "passed: 5"]


@pytest.mark.slow
def test_validation_leaves_out_a_share_without_readable_images(tmp_path: Path) -> None:
    assert passed("validation", tmp_path)


@pytest.mark.slow
def test_runs_with_unequal_shares_end_where_one_process_does(tmp_path: Path) -> None:
    """Replicated and sharded prototypes, with and without micro-batches, health measured at every step."""
    assert len(passed("runs", tmp_path)) == 12


@pytest.mark.slow
def test_shares_of_one_image_end_where_one_process_does(tmp_path: Path) -> None:
    assert len(passed("tiny_shares", tmp_path)) == 2


@pytest.mark.slow
def test_fewer_batches_steps_and_classifiers_than_processes(tmp_path: Path) -> None:
    assert passed("evaluation", tmp_path)
