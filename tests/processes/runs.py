"""Runs inside processes that torchrun started: `python -m torch.distributed.run … -m tests.processes.runs NAME FOLDER`.

The folder holds `images` and `tiny.yaml`; the runs go there too.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import carp
from carp import cli, distributed, errors
from carp.errors import Interrupted, ProcessError
from carp.training.step import Stepper
from tests.processes import checks

SHARDED = {"prototypes": "sharded", "prototype_shards": 3, "exchange_steps": 5, "epochs": 5}


@contextmanager
def before_step(step: int, action: Callable[[], object]) -> Iterator[None]:
    """Do something in the last process when a step begins."""
    real = Stepper.__call__

    def call(self, batch, **kwargs):
        if batch.step == step and distributed.rank() == distributed.world_size() - 1:
            action()
        return real(self, batch, **kwargs)

    Stepper.__call__ = call
    yield
    Stepper.__call__ = real


def train(folder: Path, name: str, **settings: object) -> None:
    carp.train(folder / "images", folder / name, folder / "tiny.yaml", quiet=True, **settings)


def equality(folder: Path) -> None:
    """What a single process is compared with."""
    checks.main()
    train(folder, "three")
    with (
        before_step(19, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Interrupted, match="stopped by SIGTERM after step 20 of 52"),
    ):
        train(folder, "stopped", checkpoint_steps=1000)
    distributed.stop()
    train(folder, "sharded", **SHARDED)


def faults(folder: Path) -> None:
    """With --max-restarts=1: the first attempt is killed at step 12."""
    train(folder, "undisturbed", epochs=5)
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    with before_step(12 if first_attempt else -1, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        train(folder, "killed", epochs=5)
    assert not first_attempt
    start = time.monotonic()
    with before_step(2, lambda: time.sleep(20)), pytest.raises(ProcessError) as hung:
        train(folder, "hung", epochs=5, timeout_minutes=0.1)
    if distributed.is_first():
        assert "process 0 of 2 waited in vain" in str(hung.value)
        assert "timeout_minutes" in str(hung.value)
        assert time.monotonic() - start < 18


def command_line(folder: Path, *words: str, file_limit: int = 0, error: str = "") -> None:
    """`carp train` whose first process cannot write large files, or whose last process meets an error."""
    if file_limit and distributed.is_first():
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    sys.argv = ["carp", "train", str(folder / "images"), "--recipe", str(folder / "tiny.yaml"), *words]

    def fail() -> None:
        if error == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise getattr(errors, error)("an error of one process.") if hasattr(errors, error) else ZeroDivisionError(error)

    with before_step(7 if error else -1, fail):
        cli.main()


if __name__ == "__main__":
    name, folder, *words = sys.argv[1:]
    if name == "command_line":
        limit, error, *words = words
        command_line(Path(folder), *words, file_limit=int(limit), error=error)
    else:
        {"equality": equality, "faults": faults}[name](Path(folder))
