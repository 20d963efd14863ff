"""`carp demo`: train on the embedded images and evaluate the encoder."""

from pathlib import Path
from typing import Any

from carp.commands.evaluate import evaluate
from carp.commands.train import train
from carp.evaluation.result import Result

TRAIN, TEST = "embedded:shapes", "embedded:shapes-test"


def demo(*, out: str | Path = "runs/demo", **overrides: Any) -> list[Result]:
    """Train on the embedded images for a few minutes, then compare encoders by k-NN.

    Args:
        out: The run folder.
        **overrides: Settings that differ from those of the recipe `demo`.

    Returns:
        The results of raw pixels, the untrained encoder, the student and the teacher.
    """
    run = train(TRAIN, out, "demo", **overrides)
    branches = ("raw pixels", "untrained", "student", "teacher")
    return [evaluate("knn", run.folder, TRAIN, test=TEST, branch=branch, k=20, quiet=False) for branch in branches]
