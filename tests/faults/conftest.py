"""Real processes to stop, kill and starve."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import tiny_images, write_images, write_recipe

SERVER = Path(__file__).with_name("fork_server.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
EPOCHS = 40  # 160 steps
KILLS = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many processes were killed: docs/reliability.md has the figure."""
    if kills := config.stash.get(KILLS, 0):
        terminalreporter.write_line(f"{kills} commands were killed with SIGKILL and run again")


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = 60) -> None:
    """Poll a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.002)


def slowdown() -> float:
    """How much longer work takes here because of other programs: 1 on an idle machine."""
    start, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.1:
        pass
    return max(1.0, (time.monotonic() - start) / 0.1)


class Child:
    """A running `carp`."""

    def __init__(self, server: "Server", pid: int, output: Path) -> None:
        self._server, self.pid, self._output = server, pid, output

    @property
    def output(self) -> str:
        """Both its streams so far."""
        return self._output.read_text()

    @property
    def alive(self) -> bool:
        """Whether it still runs (a process that has ended waits as a zombie for `wait`)."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def send(self, number: signal.Signals) -> None:
        """Send a signal; the process must be there to receive it."""
        assert self.alive, f"it ended by itself:\n{self.output}"
        os.kill(self.pid, number)

    def wait(self, *, seconds: float = 120) -> int:
        """Its exit code; negative when a signal killed it. A process that does not end in time fails the test."""
        end = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > end:
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
                for pid in (self.pid, *map(int, children)):
                    os.kill(pid, signal.SIGKILL)
                self._server.ask({"wait": self.pid})
                pytest.fail(f"it did not end in {seconds} s:\n{self.output}")
            time.sleep(0.005)
        return self._server.ask({"wait": self.pid})


class Server:
    """Starts processes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started, self.kills = folder, 0, 0
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            cwd=folder,
        )

    def ask(self, request: dict[str, object]) -> int:
        """One request, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = int(self._process.stdout.readline())
        self.kills += "wait" in request and answer == -signal.SIGKILL
        return answer

    def start(self, *words: object, **limits: object) -> Child:
        """`carp words…` as a process of its own."""
        self._started += 1
        output = self._folder / f"output-{self._started}.txt"
        output.touch()
        pid = self.ask({"start": [str(w) for w in words], "output": str(output), **limits})
        return Child(self, pid, output)

    def run(self, *words: object, **limits: object) -> tuple[int, str]:
        """`carp words…` to its end: exit code and output."""
        child = self.start(*words, **limits)
        return child.wait(), child.output

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


@pytest.fixture(scope="session")
def carp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The command line as real processes."""
    server = Server(tmp_path_factory.mktemp("processes"))
    yield server
    server.close()
    request.config.stash[KILLS] = server.kills


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 64 images of 32 pixels."""
    return write_images(tmp_path_factory.mktemp("images"), tiny_images())


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 steps, a checkpoint every 5."""
    return write_recipe(tmp_path_factory.mktemp("recipe") / "tiny.yaml", epochs=EPOCHS)


@pytest.fixture(scope="session")
def undisturbed(carp: Server, images: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stopped."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out)
    assert code == 0, output
    return out


@pytest.fixture(scope="session")
def short_run(carp: Server, images: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 steps with checkpoints at 10, 15 and 20. Copy it before you change it."""
    out = tmp_path_factory.mktemp("short") / "run"
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 0, output
    return out
