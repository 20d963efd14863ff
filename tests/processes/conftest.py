"""Real processes under torchrun."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from carp.runs.metrics_log import read_metrics
from tests.helpers import final_tensors, tiny_images, write_images, write_recipe

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400", "PYTHONPATH": os.pathsep.join(sys.path)}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
# An encoder without batch norm; that of the projector is synchronised.
NO_BATCH_NORM: dict[str, Any] = {
    "encoder": "convnext_atto",
    "encoder_options": {"depths": [1, 1, 1, 1], "dims": [4, 8, 8, 16]},
    "stem": "encoder",
}


def torchrun_words(processes: int, *words: object, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a module or script in several processes."""
    return [*TORCHRUN, f"--nproc-per-node={processes}", *options, *map(str, words)]


def torchrun(processes: int, *words: object, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run it to its end: exit code, and both streams together."""
    done = subprocess.run(
        torchrun_words(processes, *words, options=options),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 images of 32 pixels and a recipe of 16 steps without batch norm in the encoder."""
    folder = tmp_path_factory.mktemp("processes")
    write_images(folder / "images", tiny_images())
    write_recipe(folder / "tiny.yaml", epochs=4, num_prototypes=96, **NO_BATCH_NORM)
    return folder


def own_lines(output: str) -> list[str]:
    """What CARP itself says when it ends."""
    return [line for line in output.splitlines() if line.startswith("carp: ")]


def losses(run: Path) -> list[float]:
    """The loss curve of a run."""
    return [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]


def distance(ours: Path, theirs: Path) -> float:
    """How far the final weights of two runs are apart, relative to their norm."""
    one, other = (
        torch.cat([t.double().flatten() for name, t in sorted(final_tensors(run).items()) if name.startswith("model.")])
        for run in (ours, theirs)
    )
    return float((one - other).norm() / other.norm())
