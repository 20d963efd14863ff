"""Verify the files of a run folder, for `carp check`."""

import json
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from carp.errors import CheckpointError, DataError
from carp.files.verdicts import Checked, judge
from carp.runs import thread_log
from carp.runs.checkpoint import list_checkpoints, load
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import open_run


def check_run(folder: Path) -> Iterator[Checked]:
    """Verify the files that every run has; all others in its folder are checked on their own."""
    yield judge(folder / "config.yaml", lambda: open_run(folder), "readable")
    yield judge(folder / "run.json", lambda: json.loads((folder / "run.json").read_text()), "readable")
    yield judge(folder / "metrics.jsonl", lambda: _check_metrics(folder), "readable")


def check_run_file(path: Path) -> Iterator[Checked]:
    """Verify a file that a run may have, by its name."""
    if path.name == thread_log.THREADS:
        yield judge(path, lambda: thread_log.check_record(path), "readable")
    elif path.name == "quarantine.jsonl":
        yield judge(path, lambda: [json.loads(line) for line in path.read_text().splitlines()], "readable")
    elif path.name == "plots.png":
        yield judge(path, lambda: _check_picture(path))


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder is a checkpoint, in a run or elsewhere."""
    if path in list_checkpoints(path.parent):
        return True
    return path.is_dir() and {"manifest.json", "tensors.safetensors"} <= {inside.name for inside in path.iterdir()}


def check_checkpoint(path: Path) -> Iterator[Checked]:
    """Verify a checkpoint as a whole."""
    yield judge(path, lambda: load(path))


def _check_metrics(folder: Path) -> None:
    path, problems = folder / "metrics.jsonl", list[str]()
    counted = 0
    for checkpoint in reversed(list_checkpoints(folder / "checkpoints")):
        try:
            counted = int(load(checkpoint).state["metrics_length"])
            break
        except CheckpointError:
            continue
    if not path.exists() and counted:
        raise DataError("it is missing")
    if path.exists():
        read_metrics(path, problems.append)
        if path.stat().st_size < counted:
            problems.append(f"it has {path.stat().st_size:,} of the {counted:,} bytes that the checkpoint counted")
    if problems:
        raise DataError(problems[-1])


def _check_picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.verify()
