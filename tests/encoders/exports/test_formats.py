"""Every format: read by its own library, features equal; what does not fit is refused; nothing foreign is replaced."""

import json
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors import safe_open
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from carp.config import resolve
from carp.encoders.exports import BY_NAME, FORMATS, ExportableEncoder, write_verified
from carp.encoders.exports.timm_folder import _crop_pct
from carp.errors import CheckpointError, ModelError
from carp.features.extract import default_resize
from carp.images.views.centre_crop import resize_and_crop
from carp.model.encoder import build_encoder
from tests.encoders.exports.detectron2_like import ResNet18
from tests.encoders.foreign.layouts import randomised
from tests.helpers import TINY

SIZE = 48
NARROW = {"channels": [4, 8, 8, 12], "stem_type": "deep", "stem_width": 4}


def exportable(name: str = "resnet18", size: int = SIZE, **options: Any) -> ExportableEncoder:
    module = randomised(timm.create_model(name, num_classes=0, **options)).requires_grad_(False)
    return ExportableEncoder(
        module, size, size * 8 // 7, name, options, {"run": "test"}, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    )


@pytest.fixture(scope="module")
def plain() -> ExportableEncoder:
    return exportable()


@pytest.fixture(scope="module")
def small_stem() -> ExportableEncoder:
    config = resolve({**TINY, "encoder_options": {"channels": [4, 8, 8, 12]}}, num_images=64)
    module = randomised(build_encoder(config)).requires_grad_(False)
    return ExportableEncoder(module, 32, 32, "resnet18", dict(config.encoder_options), {"run": "test"})


def pictures(count: int = 2, height: int = SIZE, width: int = SIZE) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(4))


def assert_equal(ours: nn.Module, theirs: Callable[[Tensor], Tensor], *shapes: tuple[int, int, int]) -> None:
    with torch.inference_mode():
        for shape in shapes or ((2, SIZE, SIZE), (1, 64, 40)):
            images = pictures(*shape)
            ours_BF, theirs_BF = ours(images), theirs(images)
            assert ours_BF.std() > 0.01
            torch.testing.assert_close(theirs_BF, ours_BF, rtol=1e-5, atol=1e-5)


def test_torchvision_loads_it_strictly(plain: ExportableEncoder, tmp_path: Path) -> None:
    written = write_verified(plain, BY_NAME["torchvision"], tmp_path / "sub" / "encoder.pth")
    net = torchvision.models.resnet18()
    net.fc = nn.Identity()
    net.load_state_dict(torch.load(written.path, weights_only=True))  # noqa: TID251 - as a user of torchvision does
    assert_equal(plain.module, net.eval())
    assert written.difference <= 1e-6


def test_timm_loads_the_folder_by_its_path(plain: ExportableEncoder, tmp_path: Path) -> None:
    folder = write_verified(plain, BY_NAME["timm"], tmp_path / "encoder").path
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert_equal(plain.module, net)
    data = resolve_data_config({}, model=net)
    assert list(data["input_size"]) == [3, SIZE, SIZE]
    assert (list(data["mean"]), list(data["std"])) == ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    transform = create_transform(**data)
    for shape in ((61, 97), (83, 50)):
        pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
        seen = resize_and_crop(pixels, plain.resize, plain.size).astype(np.float32) / 255
        expected = (torch.from_numpy(seen).permute(2, 0, 1) - torch.tensor(plain.mean)[:, None, None]) / torch.tensor(
            plain.std
        )[:, None, None]
        torch.testing.assert_close(transform(Image.fromarray(pixels)), expected)
    classifier = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=5).eval()
    assert classifier(pictures()).shape == (2, 5)
    assert torch.equal(classifier.layer4[1].conv2.weight, plain.module.get_submodule("layer4.1.conv2").weight)


def test_timm_makes_the_resize_of_its_share_again() -> None:
    for size in range(1, 513):
        for resize in (size, default_resize(size), size + 1, size + 63):
            assert math.floor(size / _crop_pct(size, resize)) == resize


def test_timm_takes_arguments_of_the_encoder(tmp_path: Path) -> None:
    narrow = exportable("resnet26", **NARROW)
    folder = write_verified(narrow, BY_NAME["timm"], tmp_path / "encoder").path
    assert_equal(narrow.module, timm.create_model(f"local-dir:{folder}", pretrained=True).eval())


def test_safetensors_tell_what_they_are(small_stem: ExportableEncoder, tmp_path: Path) -> None:
    path = write_verified(small_stem, BY_NAME["safetensors"], tmp_path / "encoder.safetensors").path
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["carp"])
        assert set(file.keys()) == set(small_stem.module.state_dict())
    assert about["architecture"] == "resnet18"
    assert about["options"] == {"channels": [4, 8, 8, 12]}
    assert (about["size"], about["num_features"], about["origin"]) == (32, 12, {"run": "test"})


def test_onnx_of_any_number_and_size(small_stem: ExportableEncoder, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = write_verified(small_stem, BY_NAME["onnx"], tmp_path / "encoder.onnx").path
    assert sorted(file.name for file in tmp_path.iterdir()) == ["encoder.onnx"]  # the weights are inside
    session = onnxruntime.InferenceSession(path)
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert json.loads(session.get_modelmeta().custom_metadata_map["carp"])["size"] == 32
    for shape in ((1, 32, 32), (5, 32, 32), (2, 57, 40), (3, 128, 96)):
        images = pictures(*shape)
        found = session.run(["features"], {"images": images.numpy()})[0]
        with torch.inference_mode():
            np.testing.assert_allclose(found, small_stem.module(images).numpy(), rtol=0, atol=1e-5)


def test_a_network_of_one_size_only(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    vit = exportable("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_heads=2, size=32)
    session = onnxruntime.InferenceSession(write_verified(vit, BY_NAME["onnx"], tmp_path / "vit.onnx").path)
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    folder = write_verified(vit, BY_NAME["timm"], tmp_path / "vit").path
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert_equal(vit.module, theirs, (3, 32, 32))


def test_detectron2_names(plain: ExportableEncoder, tmp_path: Path) -> None:
    path = write_verified(plain, BY_NAME["detectron2"], tmp_path / "encoder.pkl").path
    with path.open("rb") as file:
        content = pickle.load(file, encoding="latin1")  # noqa: TID251 - as detectron2 does
    assert content["matching_heuristics"] is True
    assert content["__author__"]
    arrays = content["model"]
    assert all(isinstance(a, np.ndarray) and a.flags.writeable and a.dtype == np.float32 for a in arrays.values())
    assert b"numpy._core" not in path.read_bytes()  # a module that NumPy 1 does not have
    net = ResNet18()
    report = net.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=False)
    assert not report.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in report.missing_keys)
    assert_equal(plain.module, net.eval())


def test_detectron2_names_of_bottlenecks() -> None:
    from carp.encoders.exports.detectron2_file import detectron2_key

    assert detectron2_key("conv1.weight") == "stem.conv1.weight"
    assert detectron2_key("bn1.running_mean") == "stem.conv1.norm.running_mean"
    assert detectron2_key("layer1.0.conv1.weight") == "res2.0.conv1.weight"
    assert detectron2_key("layer3.11.bn3.bias") == "res4.11.conv3.norm.bias"
    assert detectron2_key("layer4.0.downsample.0.weight") == "res5.0.shortcut.weight"
    assert detectron2_key("layer4.0.downsample.1.running_var") == "res5.0.shortcut.norm.running_var"


@pytest.mark.parametrize("form", ["torchvision", "timm", "detectron2"])
def test_another_stem_is_refused(form: str, small_stem: ExportableEncoder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"conv1 is Conv2d\(3, 64, kernel_size=\(3, 3\).*\. Use --format"):
        write_verified(small_stem, BY_NAME[form], tmp_path / "encoder")
    assert not any(tmp_path.iterdir())


def test_other_widths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"layer1\.0\.conv1 is Conv2d\(64, 4, .*timm has networks of other widths"):
        write_verified(exportable(channels=[4, 8, 8, 12]), BY_NAME["torchvision"], tmp_path / "encoder.pth")


@pytest.mark.parametrize("scale", [1.01, float("nan")])
def test_a_file_that_differs_is_removed(scale: float, small_stem: ExportableEncoder, tmp_path: Path) -> None:
    """A writer that spoils one tensor: what was there before stays."""
    path, form = tmp_path / "encoder.safetensors", BY_NAME["safetensors"]
    write_verified(small_stem, form, path)
    before = path.read_bytes()

    def spoil(good: ExportableEncoder, target: Path) -> None:
        copy = replace(good, module=randomised(build_encoder_like(good)))
        copy.module.load_state_dict(good.module.state_dict())
        copy.module.get_submodule("layer4.1.bn2").weight.data *= scale
        form.write(copy, target)

    with pytest.raises(CheckpointError, match=r"was removed: .*differ by (inf|\d\.\de-0\d) of"):
        write_verified(small_stem, replace(form, write=spoil), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def build_encoder_like(good: ExportableEncoder) -> nn.Module:
    return build_encoder(resolve({**TINY, "encoder_options": good.options}, num_images=64))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_only_its_own_is_replaced(form: Any, plain: ExportableEncoder, tmp_path: Path) -> None:
    path = tmp_path / "encoder"
    if form.suffix:
        path.write_bytes(b"a letter")
    else:
        path.mkdir()
        (path / "config.json").write_text('{"architecture": "mine"}')
    kept = path if form.suffix else path / "config.json"
    before = kept.read_bytes()
    with pytest.raises(CheckpointError, match=f"is not a {form.name} export of CARP, so it is not replaced"):
        write_verified(plain, form, path)
    assert kept.read_bytes() == before
    own = tmp_path / "own"
    encoder = plain if form.name in ("torchvision", "detectron2") else exportable("resnet26", **NARROW)
    write_verified(encoder, form, own)
    first = own.stat().st_mtime_ns
    write_verified(encoder, form, own)
    assert own.stat().st_mtime_ns != first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["encoder", "own"]


def test_a_pickle_in_its_place_is_not_run(plain: ExportableEncoder, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    for form in ("detectron2", "torchvision"):
        path = tmp_path / form
        path.write_bytes(pickle.dumps({"carp": Attack()}))
        with pytest.raises(CheckpointError, match="is not replaced"):
            write_verified(plain, BY_NAME[form], path)
    assert not (tmp_path / "attacked").exists()


def test_a_file_in_the_place_of_a_folder(plain: ExportableEncoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"is a file\. Give a folder for --format timm"):
        write_verified(plain, BY_NAME["timm"], tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"is a folder\. Give a file for --format onnx, e\.g\. encoder\.onnx"):
        write_verified(plain, BY_NAME["onnx"], tmp_path)
