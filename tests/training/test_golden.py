"""A tiny run, step by step: the loss curve is known, and the variants of the step run.

A change that should not move numbers proves it here. After a change that should, print the new curve with
`python -m tests.training.test_golden` and say in the commit why it moved.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import carp
from carp.config import Config
from carp.runs.metrics_log import read_metrics

# Gentle enough that another order of summation moves the curve by about 1e-5 (without oneDNN, or with another memory
# layout), lively enough that a trust of 0.0011 or a momentum of 0.89 moves it by more than 5e-4.
SETTINGS = {
    "epochs": 5,
    "batch_size": 16,
    "seed": 0,
    "global_size": 32,
    "encoder": "resnet18",
    "encoder_options": {"channels": [8, 8, 16, 16]},
    "projector_hidden": 32,
    "embedding": 16,
    "embedding_scale": 2.0,
    "num_prototypes": 64,
    "block_size": 8,
    "optimiser": "lars",
    "lr": [2.0, 0.02],
    "precision": "fp32",
    "device": "cpu",
    "log_steps": 1,
    "health_steps": 5,
}

GOLDEN = [
    3.9808833599090576,
    3.978743314743042,
    3.9632768630981445,
    4.012460708618164,
    4.003889083862305,
    3.964754104614258,
    3.9314751625061035,
    3.880159854888916,
    3.8955609798431396,
    3.860478162765503,
    3.9866292476654053,
    3.925821542739868,
    3.8518002033233643,
    3.928246259689331,
    3.9087538719177246,
    3.8585052490234375,
    3.8858635425567627,
    3.9249186515808105,
    3.7305963039398193,
    3.8178749084472656,
]


def images() -> np.ndarray:
    """64 deterministic images with structure at several scales, so that views of one image resemble each other."""
    rng = np.random.Generator(np.random.PCG64(0))
    total = np.zeros((64, 32, 32, 3))
    for cells in (2, 4, 8, 32):
        coarse = rng.random((64, cells, cells, 3))
        total += coarse.repeat(32 // cells, axis=1).repeat(32 // cells, axis=2)
    return np.clip(total * 64, 0, 255).astype(np.uint8)


def run(folder: Path, **settings) -> list[dict]:
    """Train and return the lines with losses; on one thread, as sums over threads round differently."""
    recipe = folder / "golden.yaml"
    recipe.write_text(yaml.safe_dump(SETTINGS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        carp.train(images(), folder / "run", recipe, quiet=True, **settings)
    finally:
        torch.set_num_threads(threads)
    return [line for line in read_metrics(folder / "run" / "metrics.jsonl") if "loss" in line]


def losses(lines: list[dict]) -> list[float]:
    return [line["loss"] for line in lines]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return run(tmp_path_factory.mktemp("golden"))


def test_the_loss_curve_of_twenty_steps_is_the_known_one(golden):
    assert [line["step"] for line in golden] == list(range(20))
    assert losses(golden) == pytest.approx(GOLDEN, rel=1e-4)


def test_every_line_adds_up(golden):
    for line in golden:
        total = line["consistency"] + line["entropy_weight"] * line["kl_to_uniform"]
        assert line["loss"] == pytest.approx(total, rel=1e-6)


def test_koleo_is_logged_within_its_bounds(golden, tmp_path):
    """Embeddings at unit length are between 0 and 2 apart."""
    assert all("koleo" not in line for line in golden)
    for line in run(tmp_path, epochs=1, koleo_weight=2.0, koleo_distance=0.5):
        assert -math.log(math.hypot(2, 0.5)) <= line["koleo"] <= -math.log(0.5)


def test_the_loss_falls(golden):
    curve = losses(golden)
    assert sum(curve[10:]) < 0.99 * sum(curve[:10])


def test_the_seed_decides_the_first_step_to_the_bit(golden, tmp_path):
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
    # One epoch has another schedule than five, but the first step comes before the schedules part
    assert losses(run(tmp_path / "same", epochs=1))[0] == losses(golden)[0]
    assert losses(run(tmp_path / "other", epochs=1, seed=1))[0] != losses(golden)[0]


def test_micro_batches_of_half_the_batch_run(golden, tmp_path):
    curve = losses(run(tmp_path, epochs=2, micro_batch=8))
    assert len(curve) == 8
    assert all(math.isfinite(loss) for loss in curve)
    # Batch norm sees half the images, so the numbers differ, but not by much at the first step
    assert curve[0] == pytest.approx(GOLDEN[0], rel=0.2)
    assert curve[0] != GOLDEN[0]


@pytest.mark.slow
def test_bf16_runs_near_fp32(golden, tmp_path):
    curve = losses(run(tmp_path, epochs=2, precision="bf16"))
    assert len(curve) == 8
    assert all(math.isfinite(loss) for loss in curve)
    assert curve[0] == pytest.approx(GOLDEN[0], rel=0.02)
    assert curve[0] != GOLDEN[0]


def test_compiling_is_off_by_default():
    assert Config().compile is False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for value in losses(run(Path(scratch))):
            print(f"    {value!r},")
