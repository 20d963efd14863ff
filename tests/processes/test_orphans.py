"""SIGKILL of the process that started the others leaves nothing behind, and the run can be continued at once."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import steps_of, tiny_images, write_images, write_recipe
from tests.processes.conftest import ENVIRONMENT, losses, own_lines, torchrun_words

CARP = [sys.executable, "-m", "carp"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, so that there are data-loader workers."""
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder / "images", np.repeat(np.repeat(tiny_images(32, 20), 4, axis=1), 4, axis=2))
    write_recipe(
        folder / "recipe.yaml",
        epochs=400,
        batch_size=8,
        global_size=72,
        workers=2,
        checkpoint_steps=100_000,
        encoder_options={"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4},
    )
    return folder


def train(photos: Path, out: Path, *words: str) -> list[str]:
    return ["train", str(photos / "images"), "--recipe", str(photos / "recipe.yaml"), "--out", str(out), *words]


class Started:
    """A command in the background that has made its first steps."""

    def __init__(self, command: list[str], out: Path) -> None:
        self.said = out.with_suffix(".txt")
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                command, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(lambda: self._has_steps(out), "the first steps", seconds=120)
        self.family = descendants(self.process.pid)

    def _has_steps(self, out: Path) -> bool:
        assert self.process.poll() is None, self.said.read_text()
        return (out / "metrics.jsonl").exists() and len(losses(out)) > 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def started(request: pytest.FixtureRequest, photos: Path, tmp_path: Path) -> Iterator[Started]:
    words = train(photos, tmp_path / "run", *(["--procs", "2"] if request.param == "--procs" else []))
    command = torchrun_words(2, "-m", "carp", *words) if request.param == "torchrun" else [*CARP, *words]
    found = Started(command, tmp_path / "run")
    yield found
    for pid in [found.process.pid, *found.family]:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
    found.process.wait()


def wait_until(condition, what: str, *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """Children and their children, of all threads."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [one for child in children for one in (child, *descendants(child))]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("started", ["--procs"], indirect=True)
def test_nothing_is_left_of_a_killed_launcher_and_the_run_continues_at_once(
    started: Started, photos: Path, tmp_path: Path
) -> None:
    assert len(started.family) >= 6, "two processes, each with two workers"
    second = subprocess.run(
        [*CARP, *train(photos, tmp_path / "run")], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    (line,) = own_lines(second.stderr)
    assert second.returncode == 2
    holder = re.search(r"process (\d+) on (\S+), since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line)
    assert holder, line
    assert int(holder[1]) in started.family
    assert holder[2] == socket.gethostname()

    started.kill()
    wait_until(lambda: not any(map(lives, started.family)), "all processes are gone", seconds=10)
    done = subprocess.run(
        [*CARP, *train(photos, tmp_path / "run", "epochs=1")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert steps_of(tmp_path / "run") == [4]


@pytest.mark.slow
@pytest.mark.parametrize("started", ["torchrun", "one"], indirect=True)
def test_nothing_is_left_of_a_killed_torchrun_or_of_one_process(started: Started) -> None:
    assert len(started.family) >= 2
    started.kill()
    wait_until(lambda: not any(map(lives, started.family)), "all processes are gone", seconds=10)


FOLLOWER = """
import os, sys, time
from carp.compute import parent
if sys.argv[1] == "without descriptors":
    del os.pidfd_open
if sys.argv[1].startswith("launcher"):
    os.environ |= {"TORCHELASTIC_RUN_ID": "run", parent.LAUNCHER: str(os.getpid())}
if sys.argv[1] == "launcher without kernel":
    parent._asked_kernel = lambda: False
if os.fork() == 0:
    if sys.argv[1].startswith("launcher"):
        parent.follow_launcher()
    else:
        parent.end_with(os.getppid())
    print("watching", os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["launcher", "launcher without kernel", "with descriptors", "without descriptors"])
def test_a_child_ends_with_its_parent_on_any_system(way: str) -> None:
    """By the kernel, by a descriptor of the process, and by looking at the parent's number."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, way], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])
    assert lives(child)
    process.kill()
    process.wait()
    wait_until(lambda: not lives(child), "the child is gone", seconds=5)
