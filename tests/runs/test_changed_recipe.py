"""A recipe that has changed since a run began, as it may with a new version."""

import shlex
import shutil
from pathlib import Path

import pytest

import carp
from carp.errors import CheckpointError
from carp.runs.checkpoint import list_checkpoints
from tests.helpers import assert_same_run, tiny_images, write_images, write_recipe


def test_a_run_resumes_with_its_own_settings(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(34), classes=3)
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=4)
    carp.train(images, tmp_path / "whole", recipe, quiet=True)
    part = shutil.copytree(tmp_path / "whole", tmp_path / "a part")
    shutil.rmtree(list_checkpoints(part / "checkpoints")[-1])
    write_recipe(recipe, epochs=4, koleo_weight=3.0)
    with pytest.raises(CheckpointError, match=r"koleo_weight: 0.0 -> 3.0.*--recipe") as refused:
        carp.train(images, part, recipe, quiet=True)
    (own,) = shlex.split(str(refused.value).split("--recipe ")[1].rstrip("."))
    carp.train(images, part, own, quiet=True)
    assert_same_run(part, tmp_path / "whole")
