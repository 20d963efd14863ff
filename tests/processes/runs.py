"""Runs inside processes that torchrun started: `python -m torch.distributed.run … -m tests.processes.runs NAME FOLDER`.

The folder holds `images` and `tiny.yaml`; the runs go there too.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import carp
from carp import cli, errors
from carp.compute import distributed
from carp.errors import Interrupted, ProcessError
from carp.evaluation.linear.grid_training import TwoGrids
from carp.evaluation.nearest_neighbours import knn
from carp.evaluation.result import Result
from carp.training.step import Stepper
from tests.helpers import TINY
from tests.processes import checks

SHARDED = {"prototypes": "sharded", "prototype_shards": 3, "exchange_steps": 5, "epochs": 3}
# A network with batch norm everywhere, in place of the one without
BATCH_NORM = {"epochs": 3, **{key: TINY[key] for key in ("encoder", "encoder_options")}, "stem": "auto"}

AUTHORS = {**BATCH_NORM, "reading": "authors", "epochs": 2, "local_views": 1, "local_size": 16}
SHARDED_AUTHORS = {**SHARDED, "reading": "authors", "epochs": 2, "micro_batch": 4}


@contextmanager
def before_step(step: int, action: Callable[[], object], *, first: bool = False) -> Iterator[None]:
    """Do something in the last process, or in the first, when a step of training begins."""
    with _before(Stepper, "__call__", lambda _number, batch: batch.step == step, action, first=first):
        yield


@contextmanager
def before_call(kind: type, name: str, number: int, action: Callable[[], object]) -> Iterator[None]:
    """Do something in the last process when a method is called for the `number`-th time."""
    with _before(kind, name, lambda n, _argument: n == number, action):
        yield


@contextmanager
def _before(
    kind: type, name: str, is_due: Callable[[int, Any], bool], action: Callable[[], object], *, first: bool = False
) -> Iterator[None]:
    real, calls = getattr(kind, name), count(1)
    who = 0 if first else distributed.world_size() - 1

    def call(self, argument, *args, **kwargs):
        if is_due(next(calls), argument) and distributed.rank() == who:
            action()
        return real(self, argument, *args, **kwargs)

    setattr(kind, name, call)
    yield
    setattr(kind, name, real)


def train(folder: Path, name: str, **settings: object) -> None:
    carp.train(folder / "images", folder / name, folder / "tiny.yaml", quiet=True, **settings)


def equality(folder: Path) -> None:
    """What a single process is compared with."""
    checks.main()
    train(folder, "three")
    with (
        before_step(9, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Interrupted, match="stopped by SIGTERM after step 10 of 16"),
    ):
        train(folder, "stopped", checkpoint_steps=1000)
    distributed.stop()
    train(folder, "sharded", **SHARDED)
    with before_step(8, lambda: os.kill(os.getpid(), signal.SIGTERM)), pytest.raises(Interrupted):
        train(folder, "sharded-stopped", **SHARDED)
    distributed.stop()
    train(folder, "synchronised", **BATCH_NORM)
    train(folder, "authors", **AUTHORS)
    train(folder, "authors-sharded", **SHARDED_AUTHORS)


@contextmanager
def without_batch_norm() -> Iterator[None]:
    """Nowhere, not even in the projector: then exact micro-batches change nothing at all."""
    with mock.patch.object(torch.nn, "BatchNorm1d", torch.nn.LayerNorm):
        yield


def micro_batches(folder: Path) -> None:
    """8 images of each process in two parts."""
    with without_batch_norm():
        train(folder, "micro", epochs=2, micro_batch=6)


def faults(folder: Path) -> None:
    """With --max-restarts=1: the first attempt is killed at step 7."""
    train(folder, "undisturbed", epochs=3)
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    with before_step(7 if first_attempt else -1, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        train(folder, "killed", epochs=3)
    assert not first_attempt
    start = time.monotonic()
    with before_step(2, lambda: time.sleep(14)), pytest.raises(ProcessError) as hung:
        train(folder, "hung", epochs=5, timeout_minutes=0.1)
    if distributed.is_first():
        assert "process 0 of 2 timed out" in str(hung.value)
        assert "timeout_minutes" in str(hung.value)
        assert time.monotonic() - start < 13


def evaluation(folder: Path) -> None:
    """What a single process is compared with; every process must get the same."""
    found = evaluate_all(folder, folder / "evaluated")
    assert all(one == found for one in distributed.gather(found))
    if distributed.is_first():
        (folder / "evaluated.json").write_text(json.dumps(found))
    with (
        before_call(TwoGrids, "step", 5, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Interrupted, match="stopped by SIGTERM after step 5 of 15; everything is saved"),
    ):
        evaluate_all(folder, folder / "interrupted", only=["linear"])


def evaluate_all(
    folder: Path,
    out: Path,
    *,
    only: Sequence[str] = ("large", "embed", "knn", "linear", "cached", "one", "authors", "crops"),
) -> dict[str, Any]:
    """The numbers of every protocol that processes share; with features in `out`."""
    model, data = folder / "evaluated-run", folder / "labelled"
    options: dict[str, Any] = {"out": out, "device": "cpu"}
    small: dict[str, Any] = {"epochs": 5, "batch_size": 31, "lrs": (10, 100)}
    ways: dict[str, Callable[[], Any]] = {
        "large": lambda: plain(large_knn()),
        "embed": lambda: float(carp.embed(model, data, out / "embedded", batch_size=16, device="cpu").features.sum()),
        "knn": lambda: carp.evaluate("knn", model, data, **options).values,
        "linear": lambda: plain(
            carp.evaluate("linear", model, data, predictions=folder / "linear.csv", **options, **small)
        ),
        "cached": lambda: plain(carp.evaluate("linear", model, data, cached=True, **options, **small)),
        "one": lambda: plain(
            carp.evaluate(
                "linear", model, data, cached=True, **options, **small | {"lrs": 10},
                optimisers="sgd", weight_decays=0,
            )
        ),
        "authors": lambda: plain(
            carp.evaluate(
                "linear", model, data, **options, **small, preset="authors", predictions=folder / "authors.csv"
            )
        ),
        "crops": lambda: plain(
            carp.evaluate(
                "few-shot", model, data, **options, preset="authors", shots=2, runs=2, predictions=folder / "few.csv"
            )
        ),
    }  # fmt: skip
    return {name: ways[name]() for name in only}


def plain(result: Result) -> list[Any]:
    predicted = {end: [found.classes.tolist(), found.scores.tolist()] for end, found in result.predicted.items()}
    return json.loads(json.dumps([result.values, result.details, predicted]))


def large_knn() -> Result:
    """More queries than a tile has, so that every process has some."""
    rng = np.random.default_rng(0)
    labels, asked = rng.integers(0, 7, 900), rng.integers(0, 7, 1300)
    centres = rng.normal(size=(7, 24))
    bank, queries = (
        (centres[which] + 1.5 * rng.normal(size=(len(which), 24))).astype(np.float32) for which in (labels, asked)
    )
    return knn(bank, labels, queries, asked, k=(1, 20), predict=True)


def command_line(folder: Path, *words: str, file_limit: int = 0, error: str = "") -> None:
    """`carp train`; at step 7 the first process can no longer write large files, or the last one meets an error."""
    sys.argv = ["carp", "train", str(folder / "images"), "--recipe", str(folder / "tiny.yaml"), *words]

    def fail() -> None:
        if file_limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
            return
        if error == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise getattr(errors, error)("an error of one process.") if hasattr(errors, error) else ZeroDivisionError(error)

    with before_step(7 if error or file_limit else -1, fail, first=bool(file_limit)):
        cli.main()


RUNS = {run.__name__: run for run in (equality, micro_batches, faults, evaluation)}

if __name__ == "__main__":
    name, folder, *words = sys.argv[1:]
    if name == "command_line":
        limit, error, *words = words
        command_line(Path(folder), *words, file_limit=int(limit), error=error)
    else:
        RUNS[name](Path(folder))
