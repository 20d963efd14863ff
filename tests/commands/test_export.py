"""`carp export` through the command line."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform, resolve_data_config
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

import carp
from carp.encoders.exports import ExportableEncoder
from carp.encoders.exports.timm_folder import _crop_pct
from carp.features.extract import default_resize, evaluation_crop
from tests.commands.conftest import Cli, assert_one_line
from tests.encoders.foreign.layouts import narrow, released


def test_a_run(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "encoder.safetensors"
    code, text, err = cli("export", run, "--format", "safetensors", "--out", out, "--branch", "student")
    assert (code, err) == (0, "")
    first, images, resize, use = text.splitlines()
    assert resize.startswith("resize: Resize(32, interpolation=BICUBIC), CenterCrop(32)")
    assert first.startswith(f"safetensors: {out}   verified: features differ by 0.0e+00")
    assert images == "images: 32 px, mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]; features: 16"
    assert use == f"use: carp.load('{out}'), or its tensors alone: safetensors.torch.load_file('{out}')"
    student = carp.load(run, "student").module.state_dict()
    found = load_file(out)
    assert found.keys() == student.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in student.items())


def test_a_run_as_onnx(run: Path, tmp_path: Path) -> None:
    """The whole way: pixels, CARP's transform, onnxruntime; the features of `embed`."""
    onnxruntime = pytest.importorskip("onnxruntime")
    exported = carp.export(run, tmp_path / "encoder.onnx", format="onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    mean, std = (np.array(exported.about[name], dtype=np.float32) for name in ("mean", "std"))
    images = ((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    found = onnxruntime.InferenceSession(exported.path).run(None, {"images": np.ascontiguousarray(images)})[0]
    np.testing.assert_allclose(found, carp.load(run).embed(pixels), rtol=0, atol=1e-5)


def test_weights_with_their_own_normalisation(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "simclr.pth"
    torch.save(released("simclr", narrow().state_dict())[0], file)
    code, text, err = cli("export", f"simclr:{file}", "--format", "timm", "--out", tmp_path / "folder")
    assert (code, err) == (0, "")
    assert "images: 224 px, mean [0, 0, 0], std [1, 1, 1]; features: 48" in text
    assert f"timm.create_model('local-dir:{tmp_path / 'folder'}', pretrained=True)" in text


def test_mistakes(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    words = ("export", run, "--out", out, "--format")
    assert_one_line(cli(*words, "onx"), "no format 'onx'", "Did you mean 'onnx'?", "torchvision, timm, hf, safetensors")
    assert_one_line(cli(*words, "torchvision"), "conv1", "kernel_size=(3, 3)", "--format safetensors or onnx")
    assert_one_line(cli(*words, "timm"), "timm cannot build this network", "--format safetensors or onnx")
    assert_one_line(cli(*words, "timm", "--branch", "raw pixels"), "'raw pixels' has no encoder")
    assert_one_line(cli(*words, "timm", "--branch", "techer"), "Did you mean 'teacher'?")
    assert_one_line(cli("export", tmp_path / "none", "--format", "onnx", "--out", out), "there is no folder")
    assert_one_line(cli("export", run, "--out", out), "missing option '--format'")
    assert not out.exists()


def test_a_folder_that_cannot_be_written(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = cli("export", run, "--format", "safetensors", "--out", tmp_path / "file" / "x.safetensors")
    assert_one_line(result, "cannot write", "x.safetensors", "is a file, not a folder")


def test_an_export_takes_the_place_of_its_run(cli: Cli, run: Path, tmp_path: Path) -> None:
    """Runs on small images have a stem of CARP's own, which the file describes."""
    out = tmp_path / "encoder.safetensors"
    carp.export(run, out, format="safetensors", branch="student")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    exported, trained = carp.load(out), carp.load(run, "student")
    np.testing.assert_array_equal(exported.embed(pixels), trained.embed(pixels))
    assert exported.description() == trained.description()
    code, text, err = cli("weights", out)
    assert (code, err) == (0, "")
    assert f"carp export: student of the run {run.name}" in text
    assert "images      32 pixels" in text


@pytest.mark.parametrize("size", [32, 64, 96, 176, 224, 299, 384, 518])
def test_the_resize_rule_is_that_of_the_encoder(size: int) -> None:
    """In the file, in words and, for timm, as a share that gives the same number of pixels again."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    exportable = ExportableEncoder(module, size, default_resize(size), "resnet18", {}, {})
    rule = exportable.resize_rule
    assert rule.startswith(f"Resize({default_resize(size)}, interpolation=BICUBIC), CenterCrop({size})")
    pixels = np.random.default_rng(size).integers(0, 256, (301, 437, 3), dtype=np.uint8)
    theirs = Compose([Resize(default_resize(size), InterpolationMode.BICUBIC), CenterCrop(size)])(
        Image.fromarray(pixels)
    )
    np.testing.assert_array_equal(evaluation_crop(pixels, size), np.asarray(theirs))
    cfg = {**timm.create_model("resnet18").pretrained_cfg, "interpolation": "bicubic", "crop_mode": "center"}
    cfg |= {"input_size": (3, size, size), "crop_pct": _crop_pct(size, default_resize(size))}
    resize = create_transform(**resolve_data_config({}, pretrained_cfg=cfg)).transforms[0]
    assert resize.size in (default_resize(size), (default_resize(size),) * 2)
