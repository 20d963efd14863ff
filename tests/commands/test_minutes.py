"""`carp train --minutes`: a run as long as the time allows."""

import re
import time
from pathlib import Path

import pytest
import torch

import carp
from carp.config import resolve
from carp.errors import ConfigError
from carp.images.sources.array import ArraySource
from carp.runs.run_folder import open_run
from carp.training.planning.time_budget import budget
from tests.commands.conftest import Cli
from tests.helpers import TINY, assert_same_run, steps_of, tiny_images, write_images, write_recipe


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", tiny_images())


def test_the_run_ends_in_time_with_whole_schedules(cli: Cli, images: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "long.yaml", epochs=100_000, warmup_epochs=50_000)
    start = time.monotonic()
    code, _, err = cli("train", images, "--recipe", recipe, "--out", tmp_path / "run", "--minutes", "0.1")
    assert code == 0, err
    assert time.monotonic() - start < 60, "6 s of training, and some to measure it"
    run = open_run(tmp_path / "run")
    assert 1 <= run.config.epochs < 100_000
    assert run.config.warmup_epochs == pytest.approx(run.config.epochs / 2)
    assert steps_of(tmp_path / "run")[-1] == 4 * run.config.epochs
    assert re.search(rf"0.1 minutes: {run.config.epochs:,} epochs? of .* instead of 100000", err)


def test_the_same_command_resumes_with_the_length_that_was_chosen(images: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "two.yaml", epochs=2)
    carp.train(images, tmp_path / "plain", recipe, quiet=True)
    carp.train(images, tmp_path / "run", recipe, minutes=60, quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "plain")
    begun = (tmp_path / "run" / "config.yaml").read_bytes()
    run = carp.train(images, tmp_path / "run", recipe, minutes=0.00001, quiet=True)  # it is not measured again
    assert run.config.epochs == 2
    assert (tmp_path / "run" / "config.yaml").read_bytes() == begun


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize(
    ("minutes", "size", "epochs"), [(2000, 224, 100), (24, 224, 21), (22, 160, 38), (4, 80, 28), (1, 64, 11)]
)
def test_from_scratch_the_views_become_smaller_only_if_few_epochs_fit(minutes: int, size: int, epochs: int) -> None:
    source = ArraySource(tiny_images(16))
    config = resolve({**TINY, "epochs": 100, "batch_size": 16, "global_size": 224}, num_images=16)
    found = budget(minutes, config, source, torch.device("cpu"), any_size=True)
    assert (found.size.get("global_size", 224), found.epochs) == (size, epochs)


@pytest.mark.usefixtures("slow_steps")
def test_a_run_with_smaller_views_resumes_with_them(images: Path, tmp_path: Path) -> None:
    """The default recipe has views of 160 pixels; a size that the user names is kept."""
    settings = {key: value for key, value in TINY.items() if key not in {"epochs", "global_size", "stem"}}
    run = carp.train(images, tmp_path / "run", minutes=0.4, quiet=True, **settings)
    assert (run.config.global_size, run.config.stem) == (64, "encoder")
    steps = steps_of(run.folder)
    again = carp.train(images, tmp_path / "run", minutes=0.4, quiet=True, **settings)
    assert (again.config, steps_of(run.folder)) == (run.config, steps)
    with pytest.raises(ConfigError, match="one epoch takes about"):
        carp.train(images, tmp_path / "other", minutes=0.4, quiet=True, **settings, global_size=160)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--minutes", "0"], ["--minutes must be more than 0", "received 0"]),
        (["--minutes", "-3"], ["--minutes must be more than 0", "received -3"]),
        (["--minutes", "0", "epochs=1"], ["--minutes must be more than 0", "received 0"]),
        (["--minutes", "5", "epochs=3"], ["received 5 minutes and epochs=3", "Leave out one"]),
        (["--minutes", "5", "--procs", "2"], ["one process", "Set epochs instead"]),
        (["--minutes", "0.00001"], ["one epoch takes about", "received --minutes 1e-05", "Give at least 0."]),
        (["--minutes", "0.00001", "stem=auto", "global_size=64"], [", or the encoder's own stem", ": stem=encoder."]),
        (["--minutes", "0.00001", "stem=auto", "global_size=96"], ["such as global_size=48 stem=encoder."]),
        (["--minutes", "0.00001", "global_size=160"], ["such as global_size=80."]),
    ],
)
def test_mistakes(cli: Cli, images: Path, tmp_path: Path, words: list[str], facts: list[str]) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml")
    code, _, err = cli("train", images, "--recipe", recipe, "--out", tmp_path / "run", *words)
    assert code == 2
    for fact in facts:
        assert fact in err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_how_many_epochs_fit(cli: Cli, images: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "long.yaml", epochs=100_000)
    code, out, err = cli("train", images, "--recipe", recipe, "--dry-run", "--minutes", "1")
    assert code == 0, err
    assert "\nepochs: auto\n" in f"\n{out}", "the recipe's 100,000 epochs are not what --minutes would train"
    assert re.search(r"steps +at most 400,000 \(4 per epoch\)", out)
    found = re.search(r"in 1 min +([\d,]+) of 100,000 epochs", out)
    assert found, out
    assert 1 < int(found[1].replace(",", "")) < 100_000
    code, out, _ = cli("train", images, "--recipe", recipe, "--dry-run", "--minutes", "0.00001")
    assert code == 0
    assert re.search(r"in 1e-05 min +less than one epoch", out)


@pytest.mark.parametrize("words", [["--minutes", "-3"], ["--minutes", "5", "epochs=3"]])
def test_a_dry_run_refuses_what_the_run_would(cli: Cli, images: Path, tmp_path: Path, words: list[str]) -> None:
    code, out, err = cli("train", images, "--recipe", write_recipe(tmp_path / "tiny.yaml"), "--dry-run", *words)
    assert (code, out) == (2, "")
    assert "--minutes" in err


def test_python_refuses_the_same(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Leave out one"):
        carp.train(images, tmp_path / "run", quiet=True, minutes=1, **TINY)
