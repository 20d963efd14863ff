"""Short runs made good or bad on purpose, through the command line: the verdict says which they are, and why."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Cli
from tests.helpers import write_recipe

# 111 steps on the embedded images. Colours are kept, so that a small encoder learns to recognise views in so short a
# time. It does so by colours, which say nothing about the class: only labels show that.
SETTINGS = {
    "epochs": 3,
    "batch_size": 128,
    "stem_stride": 4,
    "projector_hidden": 128,
    "embedding": 32,
    "embedding_scale": 5.0,
    "num_prototypes": 256,
    "block_size": 64,
    "entropy_weight": 5.0,
    "teacher_momentum": [0.9, 1.0],
    "lr": [8.0, 0.08],
    "log_steps": 50,
    "health_steps": 20,
    "checkpoint_steps": 1000,
}


@pytest.mark.parametrize(
    ("words", "verdict", "cause", "remedy"),
    [
        pytest.param([], "healthy", "at the start", "", id="views agree", marks=pytest.mark.slow),
        pytest.param(
            ["epochs=1", "batch_size=40", "lr=0.0001"],
            "not learning",
            "weights have moved by only",
            "raise lr",
            id="lr too small",
        ),
        pytest.param(
            ["epochs=1", "batch_size=40", "lr=1000"],
            "collapsed|not learning",
            "",
            "times their norm, so the steps are too large: lower lr",
            id="lr too large",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["epochs=1", "batch_size=2400"], "too early to tell", "2 steps are done", "raise epochs", id="two steps"
        ),
        pytest.param(
            ["--val", "embedded:shapes-test", "validate_epochs=3"],
            "not learning",
            "no better than that of the untrained encoder",
            "raise epochs",
            id="labels",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_verdict_on_a_short_run_names_its_cause(
    cli: Cli, tmp_path: Path, words: list[str], verdict: str, cause: str, remedy: str
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", **SETTINGS)
    out = tmp_path / "run"
    code, _, err = cli("train", "embedded:shapes", "--recipe", recipe, "--out", out, *words)
    assert code == 0, err
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "health" in line][-1]
    assert last["step"] == lines[-1]["step"], "the last step is judged"
    (shown,) = [line for line in err.splitlines() if line.startswith(f"step {last['step'] + 1}: ")]
    assert last["health"] in verdict.split("|"), shown
    assert last["health"] in shown
    assert cause in last["cause"]
    assert cause in shown
    assert remedy in shown
