"""`carp demo`: train on the embedded images and show what was learned."""

from pathlib import Path
from typing import Any

from carp.commands.evaluate import evaluate_branches
from carp.commands.train import train
from carp.evaluation.result import Result

TRAIN, TEST = "embedded:shapes", "embedded:shapes-test"


def demo(*, out: str | Path, **overrides: Any) -> list[Result]:
    """Train with the recipe `demo`, then compare k-NN of raw pixels, untrained encoder, student and teacher."""
    run = train(TRAIN, out, "demo", **overrides)
    branches = ("raw pixels", "untrained", "student", "teacher")
    results, _ = evaluate_branches("knn", run.folder, TRAIN, test=TEST, branches=branches, k=20, quiet=False)
    return results
