"""What `carp export` wrote is read again as the encoder that it was; what the file says of itself is checked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import carp
from carp.config import resolve
from carp.encoders.exports import BY_NAME, ExportableEncoder, open_exportable, write_verified
from carp.errors import CheckpointError
from carp.model.encoder import build_encoder
from tests.encoders.foreign.layouts import narrow, randomised, released
from tests.helpers import TINY

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


def small_stem(folder: Path, stride: int = 2) -> tuple[ExportableEncoder, Path]:
    """A narrow ResNet-18 with the small stem, as runs on small images have it, and its export."""
    options = {"channels": [4, 8, 8, 12]}
    config = resolve({**TINY, "encoder_options": options, "stem_stride": stride}, num_images=64)
    origin = {"run": "icons", "branch": "teacher", "epochs": 3, "stem": config.stem, "stem_stride": stride}
    module = randomised(build_encoder(config)).requires_grad_(False)
    portable = ExportableEncoder(module, config.global_size, config.global_size, "resnet18", options, origin)
    return portable, write_verified(portable, BY_NAME["safetensors"], folder / "icons.safetensors").path


def rewritten(path: Path, target: Path, **changes: Any) -> Path:
    """The same tensors; another story."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["carp"])
    save_file(load_file(path), target, metadata={"carp": json.dumps({**about, **changes})})
    return target


@pytest.mark.parametrize("stride", [1, 2])
def test_the_small_stem(stride: int, tmp_path: Path) -> None:
    portable, path = small_stem(tmp_path, stride)
    encoder = carp.load(path, device="cpu")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(encoder.module(images), portable.module(images))
    assert (encoder.name, encoder.branch, encoder.epochs, encoder.size) == ("icons", "teacher", 3, portable.size)
    assert carp.load(path, size=24).size == 24


def test_it_can_be_exported_again(tmp_path: Path) -> None:
    portable, path = small_stem(tmp_path)
    again = open_exportable(path)
    assert again.about() == portable.about()
    assert write_verified(again, BY_NAME["safetensors"], tmp_path / "again.safetensors").difference == 0


def test_networks_that_are_no_resnets(tmp_path: Path) -> None:
    options = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2}
    module = randomised(timm.create_model("vit_tiny_patch16_224", num_classes=0, **options)).requires_grad_(False)
    portable = ExportableEncoder(module, 32, 32, "vit_tiny_patch16_224", options, {"run": "vit"})
    path = write_verified(portable, BY_NAME["safetensors"], tmp_path / "vit.safetensors").path
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(carp.load(path, device="cpu").module(images), module(images))


@pytest.mark.parametrize("method", ["simclr", "resnet-v1", "byol"])
def test_weights_that_compute_differently_keep_doing_so(method: str, tmp_path: Path) -> None:
    """Their export has the tensors of any ResNet: without what it says of itself its features would be others."""
    file = tmp_path / "weights.pth"
    tensors = narrow().state_dict()
    torch.save(tensors if method == "resnet-v1" else released(method, tensors)[0], file)
    carp.export(f"{method}:{file}", tmp_path / "out.safetensors", format="safetensors")
    wanted = carp.load(f"{method}:{file}", size=40, resize=40, device="cpu").embed(PIXELS)
    found = carp.load(tmp_path / "out.safetensors", size=40, resize=40, device="cpu").embed(PIXELS)
    np.testing.assert_array_equal(found, wanted)
    plain = carp.load(f"resnet:{tmp_path / 'out.safetensors'}", size=40, resize=40, device="cpu").embed(PIXELS)
    assert np.abs(plain - wanted).max() > 0.01


def test_torchvisions_file_keeps_the_size_of_images(tmp_path: Path) -> None:
    module = randomised(timm.create_model("resnet18", num_classes=0)).requires_grad_(False)
    portable = ExportableEncoder(module, 48, 50, "resnet18", {}, {"run": "photos", "branch": "student"})
    path = write_verified(portable, BY_NAME["torchvision"], tmp_path / "photos.pth").path
    encoder = carp.load(path, device="cpu")
    assert (encoder.size, encoder.resize, encoder.name) == (48, 50, "photos")
    images = torch.randn(1, 3, 48, 48)
    with torch.inference_mode():
        assert torch.equal(encoder.module(images), module(images))


def test_no_other_weights_are_read(tmp_path: Path) -> None:
    """A file may not name a checkpoint for timm to open."""
    _, path = small_stem(tmp_path)
    elsewhere = {"channels": [4, 8, 8, 12], "checkpoint_path": str(tmp_path / "evil.pth"), "pretrained": True}
    file = rewritten(path, tmp_path / "named.safetensors", options=elsewhere)
    np.testing.assert_array_equal(carp.load(file).embed(PIXELS), carp.load(path).embed(PIXELS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": "large"}, r"\(size: .*Export the encoder again"),
        ({"origin": None}, r"is invalid \(origin: "),
        ({"architecture": "resnet34"}, r"layer1\.2\.conv1\.weight is nothing, expected \[4, 4, 3, 3\]"),
        ({"architecture": "resnet19"}, "cannot be built as the resnet19 that it describes: .*Did you mean"),
        ({"options": {}}, r"layer1\.0\.conv1\.weight is \[4, 64, 3, 3\], expected \[64, 64, 3, 3\]"),
        ({"options": {"colours": 3}}, "cannot be built as the resnet18"),
    ],
)
def test_a_file_that_misstates_itself(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, path = small_stem(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        carp.load(rewritten(path, tmp_path / "other.safetensors", **changes))


def test_a_mark_that_is_not_json(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors", metadata={"carp": "a fish"})
    with pytest.raises(CheckpointError, match="was written by CARP, but"):
        carp.load(tmp_path / "x.safetensors")
