"""Starts and restarts of two processes: `python -m tests.processes.start FOLDER`."""

import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import carp
from carp.compute import distributed
from carp.config import resolve
from carp.errors import CheckpointError, ConfigError, DataError, ProcessError
from carp.images.sources import folder as folder_source
from carp.runs import resumable
from carp.runs.checkpoint import list_checkpoints
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.helpers import TINY, steps_of, tiny_images, write_images
from tests.processes.forked import in_processes

CPU = torch.device("cpu")


def train(folder: Path, name: str, **settings: object) -> None:
    carp.train(folder / "images", folder / name, quiet=True, **{**TINY, "epochs": 2, "partition": "fixed", **settings})


def listing(folder: Path) -> None:
    """Only the first process lists the folder; the other one uses its index."""
    real = folder_source.scan_folders

    def scan(*args):
        assert distributed.is_first(), "the other process lists the images too"
        time.sleep(1)
        return real(*args)

    folder_source.scan_folders = scan
    train(folder, "run")


def late(folder: Path) -> None:
    """The other process sees the newest checkpoint later, as on NFS, and still resumes from it."""
    looks = iter(range(100))

    def listed(path: Path) -> list[Path]:
        found = list_checkpoints(path)
        return found if distributed.is_first() or next(looks) > 1 else found[:-1]

    resumable.list_checkpoints = listed
    resumable._SECONDS_BETWEEN_LOOKS = 0.1
    train(folder, "run")
    assert distributed.is_first() or next(looks) > 2


def invisible(folder: Path) -> None:
    """The other process never sees it: both end with an error that names the folder, and nothing is trained."""
    if not distributed.is_first():
        resumable.list_checkpoints = lambda path: []
    resumable._SECONDS_TO_APPEAR = 0.5
    with pytest.raises(CheckpointError, match=r"process 1 does not see the checkpoint of step 8 .* share"):
        train(folder, "run")


def fixed(folder: Path) -> None:
    """Processes that are at different steps of a run with fixed blocks notice it."""
    config = resolve({**TINY, "partition": "fixed"}, num_images=64)
    model = build_model(config, CPU)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, CPU)
    stepper.partition(5 + distributed.rank())
    loop = resumable.ResumableLoop(
        first_step=0,
        last_step=2,
        batches=lambda first, last: (i for i in range(first, last)),
        step=lambda _step, _batch: None,
        save=None,
        save_seconds=60,
        mark=lambda: stepper.mark,
    )
    with pytest.raises(ProcessError, match="out of step"):
        loop.run()


def failing(folder: Path) -> None:
    """An error of the first process while it looks for images ends the wait of the other."""
    start = time.monotonic()
    if distributed.is_first():
        with pytest.raises(ConfigError):
            train(folder, "none", batch_size=-1)
        distributed.first_to_fail(2)
        time.sleep(2)  # it keeps the store
        return
    with pytest.raises(ProcessError, match="another process failed"):
        distributed.first_before_others(lambda: None)
    assert time.monotonic() - start < 60


def refused(folder: Path) -> None:
    """A mistake that is found after the first process has stored the index leaves nothing behind."""
    with pytest.raises((ConfigError, DataError), match="batch_size"):
        train(folder, "refused", batch_size=100)
    distributed.barrier()
    assert not (folder / "refused").exists()
    (folder / "empty").mkdir(exist_ok=True)
    distributed.barrier()
    with pytest.raises((ConfigError, DataError), match="batch_size"):
        train(folder, "empty", batch_size=100)
    distributed.barrier()
    assert not list((folder / "empty").iterdir())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    images = write_images(folder / "images", tiny_images(), classes=2)
    for path in (images, *images.iterdir()):  # the index of a folder that has just changed is not reused
        os.utime(path, (1e9, 1e9))
    in_processes(2, partial(listing, folder))
    print("passed: listing", flush=True)
    in_processes(2, partial(late, folder))
    print("passed: late", flush=True)
    in_processes(2, partial(invisible, folder))
    assert steps_of(folder / "run")[-1] == 8
    print("passed: invisible", flush=True)
    in_processes(2, partial(fixed, folder))
    print("passed: fixed", flush=True)
    in_processes(2, partial(refused, folder))
    print("passed: refused", flush=True)
    in_processes(2, partial(failing, folder))
    print("passed: failing", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
