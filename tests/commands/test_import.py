"""`carp import`: a checkpoint of CARP's authors becomes a run that training continues."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import carp
from carp.errors import CarpWarning, CheckpointError, ConfigError
from carp.runs.checkpoint import list_checkpoints, load
from carp.runs.metrics_log import read_metrics
from tests.commands.conftest import Cli, assert_one_line
from tests.encoders.foreign.layouts import narrow, pictures
from tests.helpers import assert_same_run, tiny_images, write_images
from tests.reference import authors_file

SMALL = {"global_size": 32, "device": "cpu", "health_steps": 3, "log_steps": 1, "precision": "fp32"}
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


def make() -> nn.Module:
    return authors_file.Network(narrow(bottleneck=False).train(), 12, 64)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """Three of eight epochs are done; a batch has eight images."""
    return authors_file.saved(*authors_file.trained(make, images=pictures(32)))


@pytest.fixture(scope="module")
def file(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authors") / "checkpoint.pth"
    torch.save(content, path)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), tiny_images(17), classes=2)


def test_ten_further_steps_and_every_command(
    cli: Cli, file: Path, content: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    code, out, err = cli("import", file, "--data", images, "--out", run, *WORDS)
    assert (code, err) == (0, "")
    assert "epoch 3 of 8, step 6" in out
    recipe = run / "config.yaml"
    assert f"next: carp train {images} --out {run} --recipe {recipe}" in out
    (point,) = (load(path) for path in list_checkpoints(run / "checkpoints"))
    assert (point.step, point.state["epoch"]) == (6, 3)
    momentum = point.tensors["optimiser.student.encoder.conv1.weight/momentum_buffer"]
    assert torch.equal(momentum, content["optimizer"]["state"][0]["mu"])
    for branch in ("student", "teacher"):  # the run is the file
        for layer in ("encoder", "projector"):
            ours, theirs = (carp.load(model, branch, layer=layer, size=32) for model in (run, file))
            np.testing.assert_allclose(ours.embed(images), theirs.embed(images), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(ours.prototypes, theirs.prototypes)
    assert cli("check", run)[0] == 0
    assert cli("train", images, "--out", run, "--recipe", recipe)[0] == 0
    steps = [line["step"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert steps == list(range(6, 16))
    names = [path.name for path in list_checkpoints(run / "checkpoints")]
    assert names == ["step-00000006-epoch-3", "step-00000016"]
    assert_same_run(run, resumed_in_parts(file, images, tmp_path / "parts"))
    assert carp.load(f"{run}@3").hash != carp.load(run).hash
    assert carp.load(run).epochs == 8
    code, _, err = cli("eval", "knn", run, "--data", images, "--k", 3, "--epoch", "all")
    assert code == 0, err


def resumed_in_parts(file: Path, images: Path, out: Path) -> Path:
    """The same run, stopped after every few steps: the newest checkpoint is removed and made again."""
    carp.import_run(file, images, out=out, **SMALL)
    settings = {"checkpoint_steps": 2, "keep_checkpoints": 9}
    carp.train(images, out, out / "config.yaml", quiet=True, **settings)
    for path in list_checkpoints(out / "checkpoints"):
        if load(path).step > 10:
            shutil.rmtree(path)
    carp.train(images, out, out / "config.yaml", quiet=True)
    return out


def test_a_run_is_judged_by_what_has_changed_since_its_import(file: Path, images: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    carp.import_run(file, images, out=run, **SMALL)
    carp.train(images, run, run / "config.yaml", quiet=True)
    first, *_ = (line for line in read_metrics(run / "metrics.jsonl") if "health" in line)
    assert first["weight_change"] < 0.1  # the distance from random weights would be about 1.4
    assert "1 step is done" in first["cause"]


def test_settings_come_from_the_file_and_can_be_given(file: Path, images: Path, tmp_path: Path) -> None:
    config = carp.import_run(file, images, out=tmp_path / "run", **SMALL, epochs=5, batch_size=4).config
    assert (config.epochs, config.batch_size, config.block_size, config.seed) == (5, 4, 16, 5)
    assert (config.reading, config.pairs, config.batch_norm_views) == ("authors", "mean", "joint")
    assert (config.encoder, config.stem, config.num_prototypes) == ("resnet18", "encoder", 64)
    assert config.lr == (0.45, 0.0048)
    with pytest.raises(ConfigError, match=r"num_prototypes is 64 in .*received 128\. Leave it out"):
        carp.import_run(file, images, out=tmp_path / "other", num_prototypes=128)
    with pytest.raises(ConfigError, match=r"block_size must divide.*settings come from"):
        carp.import_run(file, images, out=tmp_path / "other", block_size=7, **SMALL)


def test_what_a_file_lacks_is_said(content: dict[str, Any], images: Path, tmp_path: Path) -> None:
    less = tmp_path / "less.pth"
    torch.save({key: value for key, value in content.items() if key in ("student", "teacher", "epoch")}, less)
    with pytest.warns(CarpWarning) as said:
        run = carp.import_run(less, images, out=tmp_path / "run", batch_size=8, block_size=16, epochs=3, **SMALL)
    notes = [str(warning.message) for warning in said]
    assert any("does not record micro_batch, seed" in note and "lr" in note for note in notes)
    assert any("momentum of the optimiser starts at 0: the file has no state" in note for note in notes)
    assert any("all 3 epochs are done" in note and "epochs=N" in note for note in notes)
    assert not any(name.startswith("optimiser.") for name in run.checkpoint().tensors)
    with pytest.warns(CarpWarning, match="momentum of lars"):
        full = tmp_path / "full.pth"
        torch.save(content, full)
        carp.import_run(full, images, out=tmp_path / "adam", optimiser="adamw", **SMALL)
    nothing = tmp_path / "no-epoch.pth"
    torch.save({key: value for key, value in content.items() if key != "epoch"}, nothing)
    with pytest.raises(CheckpointError, match=r"finished epochs \(epoch\)"):
        carp.import_run(nothing, images, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_mistakes_are_one_line(cli: Cli, file: Path, images: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_one_line(cli("import", tmp_path / "none.pth", "--data", images, "--out", out), "none.pth")
    assert_one_line(cli("import", file, "--data", tmp_path / "none", "--out", out), "none")
    assert_one_line(cli("import", file, "--data", images, "--out", out, "epoch=3"), "'epoch'", "epochs")
    assert_one_line(cli("import", file, "--data", images, "--out", run, *WORDS), "already contains a run", "--out")
    assert_one_line(cli("import", run, "--data", images, "--out", out), "is a folder")
    weights = tmp_path / "bare.pth"
    torch.save(narrow().state_dict(), weights)
    assert_one_line(cli("import", weights, "--data", images, "--out", out), "bare.pth", "carp")
    small = write_images(tmp_path / "small", tiny_images(3))
    assert_one_line(cli("import", file, "--data", small, "--out", out, *WORDS), "batch_size", "3")
    assert not out.exists()


def test_weights_describe_the_file(cli: Cli, file: Path) -> None:
    code, out, _ = cli("weights", file)
    assert code == 0
    assert "carp import" in out
    code, out, _ = cli("weights", file, "--json")
    assert json.loads(out)["method"] == "carp"
