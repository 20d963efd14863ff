"""Exports of vision transformers: timm, ONNX and safetensors give their features; the others say that they cannot."""

from pathlib import Path

import numpy as np
import pytest
import torch

import carp
from carp.commands.export import export
from carp.errors import ModelError
from tests.encoders.foreign.test_vit import dino_file, moco_file, transformer
from tests.helpers import tiny_images


@pytest.fixture(scope="module")
def dino(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vit") / "checkpoint.pth"
    torch.save(dino_file(transformer(patch_size=8, qkv_bias=False, init_values=1e-5).state_dict()), path)
    return path


@pytest.mark.parametrize("form", ["timm", "safetensors", "onnx"])
def test_features_agree(form: str, dino: Path, tmp_path: Path) -> None:
    done = export(dino, tmp_path / "out", format=form)
    assert done.difference < 1e-5
    assert done.about["size"] == 64


def test_twelve_heads_reach_timm(tmp_path: Path) -> None:
    torch.save(moco_file(transformer(384, 12).state_dict()), tmp_path / "a.pth")
    done = export(tmp_path / "a.pth", tmp_path / "out", format="timm")
    assert done.difference < 1e-5
    assert done.about["options"]["num_heads"] == 12


def test_an_exported_file_takes_the_place_of_the_weights(dino: Path, tmp_path: Path) -> None:
    export(dino, tmp_path / "a.safetensors", format="safetensors")
    images = tiny_images(3, 64)
    ours, theirs = (carp.load(model).embed(images) for model in (dino, tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("form", ["torchvision", "detectron2"])
def test_what_is_not_supported_is_one_line(form: str, dino: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--format timm, safetensors or onnx") as caught:
        export(dino, tmp_path / "out", format=form)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
