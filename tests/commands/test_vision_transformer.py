"""A vision transformer is trained for real: several view sizes, layer-wise learning rates, resume, exports."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import carp
from carp.config import resolve
from carp.errors import Interrupted, ModelError
from carp.model.carp import Carp
from carp.runs.metrics_log import read_metrics
from carp.training.optimiser import build_optimiser, set_hyperparameters
from tests.commands.conftest import Cli
from tests.helpers import TINY, assert_same_run, tiny_images, write_images, write_recipe
from tests.processes.runs import before_step

VIT: dict[str, Any] = {
    **TINY,
    "encoder": "vit_tiny_patch16_224",
    "encoder_options": {"patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "drop_path_rate": 0.2},
    "stem_stride": 1,
    "local_views": 2,
    "local_size": 16,
    "optimiser": "adamw",
    "lr": [0.002, 0.0001],
    "weight_decay": [0.04, 0.4],
    "clip_gradient": 3.0,
    "layer_decay": 0.5,
    "epochs": 3,
}


def config(**changes: Any) -> Any:
    return resolve({**VIT, **changes}, num_images=64)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("vit") / "images", tiny_images(), classes=2)


@pytest.fixture(scope="module")
def run(images: Path) -> Path:
    carp.train(images, images.parent / "run", quiet=True, **VIT)
    return images.parent / "run"


def test_it_learns_from_views_of_two_sizes(run: Path) -> None:
    losses = [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert len(losses) == 12
    assert np.isfinite(losses).all()


def test_a_stopped_run_ends_in_the_same_bits(run: Path, images: Path, tmp_path: Path) -> None:
    with before_step(7, lambda: os.kill(os.getpid(), signal.SIGTERM)), pytest.raises(Interrupted):
        carp.train(images, tmp_path / "run", quiet=True, **VIT)
    carp.train(images, tmp_path / "run", quiet=True, **VIT)
    assert_same_run(tmp_path / "run", run)


@pytest.mark.parametrize(("setting", "size", "fits"), [("global_size", 36, "32 or 40"), ("local_size", 12, "8 or 16")])
def test_views_must_be_whole_patches(
    cli: Cli, images: Path, tmp_path: Path, setting: str, size: int, fits: str
) -> None:
    recipe = write_recipe(tmp_path / "vit.yaml", **VIT)
    code, _, err = cli("train", images, "--recipe", recipe, "--out", tmp_path / "run", f"{setting}={size}")
    assert code == 2
    assert f"{setting} must be a multiple of 8" in err
    assert f"received {size}. Use {fits}." in err
    assert not (tmp_path / "run").exists()


def test_any_whole_number_of_patches_can_be_embedded_and_others_are_an_error(run: Path, images: Path) -> None:
    image = next(images.rglob("*.png"))
    assert carp.load(run, size=48).embed([image]).shape == (1, 16)
    with pytest.raises(ModelError, match=r"size must be a multiple of 8.*received 50\. Use 48 or 56\."):
        carp.load(run, size=50)


def test_an_export_has_the_features_of_the_run(run: Path, images: Path, tmp_path: Path) -> None:
    image, file = next(images.rglob("*.png")), tmp_path / "vit.safetensors"
    carp.export(run, file, format="safetensors")
    np.testing.assert_allclose(carp.load(file).embed([image]), carp.load(run).embed([image]), rtol=1e-4, atol=1e-5)


def test_timm_builds_an_export_that_takes_several_sizes(run: Path, tmp_path: Path) -> None:
    carp.export(run, tmp_path / "vit", format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True)
    for size in (32, 48):
        assert theirs(torch.zeros(1, 3, size, size)).shape == (1, 16)


def test_the_teacher_has_no_stochastic_depth_and_the_student_has() -> None:
    model = Carp(config()).train()
    view = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.teacher(view), model.teacher(view))
        assert not torch.equal(model.student(view), model.student(view))


@pytest.mark.parametrize("optimiser", ["lars", "sgd", "adamw"])
def test_lower_layers_move_more_slowly(optimiser: str) -> None:
    """With a decay of ½ and three blocks: stem 1/8, first block 1/4, second 1/2, third, norm and projector 1."""
    settings = config(optimiser=optimiser, prototype_lr=0.3)
    model = Carp(settings)
    built = build_optimiser(model.student, settings)
    set_hyperparameters(built, lr=0.8, weight_decay=0.1)
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
    expected = {
        "encoder.pos_embed": 0.1,
        "encoder.cls_token": 0.1,
        "encoder.patch_embed.proj.bias": 0.1,
        "encoder.blocks.0.attn.qkv.weight": 0.2,
        "encoder.blocks.1.mlp.fc1.weight": 0.4,
        "encoder.blocks.2.norm1.weight": 0.8,
        "encoder.norm.weight": 0.8,
        "assigner.directions_KD": 0.24,
    }
    named = dict(model.student.named_parameters())
    assert len(rates) == len(named) == sum(len(group["params"]) for group in built.param_groups)
    for name, rate in expected.items():
        assert rates[id(named[name])] == pytest.approx(rate), name
    for name, parameter in named.items():
        assert decays[id(parameter)] == (0.1 if parameter.ndim > 1 else 0.0), name
        if name.startswith("projector"):
            assert rates[id(parameter)] == 0.8


def test_layer_decay_works_for_a_convolutional_encoder() -> None:
    settings = resolve({**TINY, "layer_decay": 0.5}, num_images=64)
    model = Carp(settings)
    built = build_optimiser(model.student, settings)
    set_hyperparameters(built, lr=1.0, weight_decay=0.0)
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    named = dict(model.student.named_parameters())
    assert rates[id(named["encoder.conv1.weight"])] < rates[id(named["encoder.layer2.0.conv1.weight"])] < 1
    assert rates[id(named["encoder.layer4.0.conv2.weight"])] == 1
