"""`carp demo`: train on the embedded images and show what was learned."""

from pathlib import Path
from typing import Any

from carp.commands.evaluate import evaluate
from carp.commands.train import train
from carp.evaluation.result import Result

TRAIN, TEST = "embedded:shapes", "embedded:shapes-test"


def demo(*, out: str | Path, **overrides: Any) -> list[Result]:
    """Train with the recipe `demo`, then compare k-NN of raw pixels, untrained encoder, student and teacher."""
    run = train(TRAIN, out, "demo", **overrides)
    branches = ("raw pixels", "untrained", "student", "teacher")
    return [evaluate("knn", run.folder, TRAIN, test=TEST, branch=branch, k=20, quiet=False) for branch in branches]
