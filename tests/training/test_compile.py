"""`compile: true` changes the time of a step and the rounding, nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import carp
from carp.config.recipe import read_yaml
from tests.helpers import final_tensors, steps_of
from tests.training.test_golden import images, losses, run

COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler on the CPU, and there is none")
def test_a_compiled_run_learns_the_same_and_its_checkpoint_continues_uncompiled(tmp_path: Path) -> None:
    for name in ("plain", "compiled"):
        (tmp_path / name).mkdir()
    settings = {"epochs": 2, "checkpoint_steps": 4}
    plain = losses(run(tmp_path / "plain", **settings))
    compiled = losses(run(tmp_path / "compiled", **settings, compile=True))
    # Fused kernels add in another order. That moves this curve by about 1e-5 (see test_golden), and a wrong trust or
    # momentum by 5e-4, so 1e-4 tells rounding from a mistake; equal bits would mean that nothing was compiled.
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert compiled != plain
    first, second = tmp_path / "plain" / "run", tmp_path / "compiled" / "run"
    assert final_tensors(first).keys() == final_tensors(second).keys()

    # From the compiled run's checkpoint in the middle, without compiling.
    assert steps_of(second) == [4, 8]
    shutil.rmtree(second / "checkpoints" / "step-00000008")
    config = (second / "config.yaml").read_text()
    assert "compile: true" in config
    (second / "config.yaml").write_text(config.replace("compile: true", "compile: false"))
    continued = losses(run(tmp_path / "compiled", **settings))
    assert read_yaml(second / "config.yaml")["compile"] is False
    assert continued[:4] == compiled[:4]
    assert continued == pytest.approx(plain, rel=1e-4)
    ours, theirs = (carp.load(folder, device="cpu").embed(images()) for folder in (first, second))
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3)
