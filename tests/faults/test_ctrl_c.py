"""Ctrl-C: one line within two seconds, exit code 130 and no traceback, in whatever phase a command is."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from carp.images.loading.workers import by_workers
from carp.runs.stop_signal import StopSignal
from tests.faults.conftest import ENVIRONMENT, Server, slowdown, wait_until
from tests.helpers import tiny_images, write_images

LINE_WITHIN, END_WITHIN = 2.0, 4.0  # seconds on an idle machine
BUSY = """
import hashlib, sys
from carp.cli.interrupt import CtrlC
with CtrlC(lambda: "the line"):
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in one call, in which no signal handler can run
"""
EARLY = """
import signal
from carp.cli.interrupt import CtrlC
with CtrlC(lambda: "the line"):
    print("early", flush=True)
    signal.pause()  # nobody catches KeyboardInterrupt yet
"""


@pytest.fixture(scope="module")
def trained(carp: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled images, a run, stored features and their index."""
    folder = tmp_path_factory.mktemp("trained")
    write_images(folder / "images", tiny_images(66), classes=3)
    for words in (
        ["train", folder / "images", "--recipe", recipe, "--out", folder / "run", "epochs=1"],
        ["embed", folder / "run", "--data", folder / "images", "--out", folder / "features"],
        ["index", folder / "features"],
    ):
        code, output = carp.run(*words)
        assert code == 0, output
    return folder


def started(*words: object, code: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, *(["-c", code] if code else ["-m", "carp", *map(str, words)])]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )


def interrupted(process: subprocess.Popen[str]) -> str:
    """Send Ctrl-C; the one line that the process prints before it ends with 130."""
    assert process.stderr is not None
    os.killpg(process.pid, signal.SIGINT)
    sent = time.monotonic()
    line = process.stderr.readline()
    assert time.monotonic() - sent < LINE_WITHIN * slowdown()
    assert process.wait(timeout=60) == 130
    assert time.monotonic() - sent < END_WITHIN * slowdown()
    assert process.stderr.read() == ""
    return line


def test_while_torch_is_imported(trained: Path, tmp_path: Path) -> None:
    process = started("embed", trained / "run", "--data", trained / "images", "--out", tmp_path / "out")
    wait_until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), "torch is being loaded")
    line = interrupted(process)
    assert line.startswith("carp: interrupted.")
    assert "same command" in line


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.5])
def test_while_the_command_line_starts(trained: Path, seconds: float) -> None:
    process = started("train", trained / "images", "--dry-run")
    wait_until(lambda: "_bisect" in Path(f"/proc/{process.pid}/maps").read_text(), "Python itself has started")
    time.sleep(seconds)
    assert interrupted(process) == "carp: interrupted.\n"


def test_before_the_command_begins() -> None:
    process = started(code=EARLY)
    assert process.stdout is not None
    assert process.stdout.readline() == "early\n"
    assert interrupted(process) == "carp: the line\n"


def test_inside_one_long_call_the_line_comes_and_the_process_ends() -> None:
    process = started(code=BUSY)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    sent = time.monotonic()
    assert process.wait(timeout=60) == 130
    assert time.monotonic() - sent < (LINE_WITHIN + 1) * slowdown()
    assert process.stderr is not None
    assert process.stderr.read() == "carp: the line\n"


def test_a_second_one_ends_a_long_call_at_once() -> None:
    process = started(code=BUSY)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    sent = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert time.monotonic() - sent < 1 * slowdown()
    assert process.stderr is not None
    assert process.stderr.read() == "carp: the line\n"


def test_an_error_that_the_interrupt_causes_is_reported_as_an_interrupt() -> None:
    """Compiled code may replace KeyboardInterrupt by its own error, which then looks like a damaged file."""
    script = """
import signal
from carp import cli
from carp.cli import entry
from carp.errors import CheckpointError

def command(**_):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise CheckpointError("the file is damaged") from None

entry.app = command
cli.console()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 130
    assert done.stderr.startswith("carp: interrupted.")
    assert "damaged" not in done.stderr


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.5])
@pytest.mark.parametrize(
    "words",
    [
        "train IMAGES --recipe RECIPE --out OUT/run epochs=1000",
        "train IMAGES --recipe RECIPE --dry-run",
        "eval knn RUN --data IMAGES --out OUT",
        "eval linear RUN --data IMAGES --out OUT epochs=100",
        "eval linear RUN --data IMAGES --out OUT --cached",
        "eval all RUN --data IMAGES --out OUT",
        "embed RUN --data IMAGES --out OUT/features",
        "index FEATURES --out OUT/index",
        "search FEATURES IMAGES",
        "duplicates IMAGES --model RUN --out OUT",
        "data check IMAGES",
        "data attack IMAGES --out OUT",
        "views IMAGES --out OUT/views.png",
        "export RUN --format onnx --out OUT/x.onnx",
    ],
)
def test_in_every_command(
    carp: Server, trained: Path, recipe: Path, tmp_path: Path, words: str, seconds: float
) -> None:
    """Earlier or later in its work; a command that was faster than the signal has simply done its work."""
    places = {
        "IMAGES": trained / "images", "RUN": trained / "run", "FEATURES": trained / "features", "RECIPE": recipe,
        "OUT": tmp_path,
    }  # fmt: skip
    for name, place in places.items():
        words = words.replace(name, str(place))
    child = carp.start(*words.split())
    time.sleep(seconds)
    if not child.alive:
        assert child.wait() == 0, child.output
        return
    child.send(signal.SIGINT)
    sent = time.monotonic()
    wait_until(lambda: "carp: " in child.output or not child.alive, "a line", seconds=LINE_WITHIN * slowdown())
    code = child.wait()
    assert time.monotonic() - sent < END_WITHIN * slowdown(), child.output
    assert "Traceback" not in child.output
    assert "Exception ignored" not in child.output
    if code != 0:  # it was in its last moments
        assert code == 130, child.output
        assert "carp: interrupted." in child.output or "carp: stopped by SIGINT" in child.output


def test_a_run_says_that_it_saves_first(carp: Server, images: Path, recipe: Path, tmp_path: Path) -> None:
    child = carp.start("train", images, "--recipe", recipe, "--out", tmp_path / "run", "epochs=100000")
    wait_until(lambda: "step 1/" in child.output, "the first step")
    child.send(signal.SIGINT)
    assert child.wait() == 130
    first, last = child.output.splitlines()[-2:]
    assert "stopping" in first
    assert "Ctrl-C again" in first
    assert "everything is saved" in last


def test_a_signal_ends_the_wait_for_the_next_batch() -> None:
    """A batch of photographs may take a minute, in which nothing has to be saved."""

    def slow() -> Iterator[int]:
        yield 1
        time.sleep(60)
        yield 2

    start, got = time.monotonic(), []
    with StopSignal() as stop:
        for item in stop.until_signal(slow()):
            got.append(item)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert (got, stop.number) == ([1], signal.SIGINT)
    assert time.monotonic() - start < 10


def test_a_signal_during_a_step_lets_it_end() -> None:
    seen = []
    with StopSignal() as stop:
        for item in stop.until_signal(iter([1, 2, 3])):
            if item == 2:
                signal.raise_signal(signal.SIGINT)
            seen.append(item)
            if stop.number:
                break
    assert (seen, stop.number) == ([1, 2], signal.SIGINT)


class _Slow(Dataset[int]):
    def __getitems__(self, items: list[tuple[int, int]]) -> int:
        if items[0][1]:
            time.sleep(60)
        return items[0][1]


def test_busy_workers_are_not_waited_for() -> None:
    batches = by_workers(_Slow(), [[(0, 0)], [(0, 1)], [(0, 2)]], 2)
    assert next(batches) == 0
    start = time.monotonic()
    batches.close()
    assert time.monotonic() - start < 3
    assert not multiprocessing.active_children()
