"""The authors' checkpoints, whole: written by a restatement of their script, read by CARP."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import carp
from carp.encoders.authors_checkpoint import read_authors
from carp.encoders.authors_settings import settings_of_authors
from carp.errors import CheckpointError, ModelError
from tests.encoders.foreign.layouts import narrow, pictures, released
from tests.reference import authors_file

FEATURES, PROTOTYPES = 12, 64


def small(**head: Any) -> nn.Module:
    return authors_file.Network(narrow(bottleneck=False).train(), FEATURES, PROTOTYPES, **head)


@pytest.fixture(scope="module")
def networks() -> tuple[Any, Any, Any]:
    """Student, teacher and optimiser. Copy what you change."""
    return authors_file.trained(small, images=pictures(32))


@pytest.fixture
def content(networks: tuple[Any, Any, Any]) -> dict[str, Any]:
    return authors_file.saved(*networks)


def written(path: Path, content: dict[str, Any], **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def outputs(network: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, embeddings and prototypes of a network of theirs."""
    network.eval()
    with torch.no_grad():
        features = network.backbone(pictures(32))
        network.head(features)  # computes the weights that weight norm scales
        return features, network.head.mlp(features), network.head.last_layer.weight.clone()


@pytest.mark.parametrize("prefix", ["module.", "", "_orig_mod.module."])
@pytest.mark.parametrize("zipped", [True, False])
def test_features_embeddings_and_prototypes_are_theirs(
    networks: tuple[Any, Any, Any], prefix: str, zipped: bool, tmp_path: Path
) -> None:
    content = authors_file.saved(*networks, prefix=prefix)
    file = written(tmp_path / "checkpoint.pth", content, _use_new_zipfile_serialization=zipped)
    found = {}
    for branch, network in zip(("student", "teacher"), networks, strict=False):
        features, embeddings, prototypes = outputs(network)
        encoder, projected = (carp.load(file, branch, layer=layer) for layer in ("encoder", "projector"))
        with torch.no_grad():
            torch.testing.assert_close(encoder.module(pictures(32)), features)
            torch.testing.assert_close(projected.module(pictures(32)), embeddings)
        np.testing.assert_allclose(projected.prototypes, prototypes, rtol=1e-5, atol=1e-7)
        assert projected.prototypes.shape == (PROTOTYPES, 16)
        np.testing.assert_allclose(np.linalg.norm(projected.prototypes, axis=1), 1, rtol=1e-6)
        assert encoder.branch == projected.branch == branch
        found[branch] = projected.hash
    assert found["student"] != found["teacher"]
    assert carp.load(file).branch == "teacher"


def test_torchvisions_network_has_our_names(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return authors_file.Network(torchvision.models.resnet18(zero_init_residual=True), 512, 32)

    networks = authors_file.trained(make, images=pictures(32), steps=1)
    file = written(tmp_path / "checkpoint.pth", authors_file.saved(*networks))
    found = read_authors(file)
    assert found.model_settings == {
        "encoder": "resnet18",
        "encoder_options": {},
        "stem": "encoder",
        "projector_hidden": 24,
        "embedding": 16,
        "num_prototypes": 32,
    }
    theirs = networks[0].backbone.state_dict()
    ours = {n.removeprefix("encoder."): t for n, t in found.branches["student"].items() if n.startswith("encoder.")}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_momentum_of_every_parameter_has_its_name(networks: tuple[Any, Any, Any], tmp_path: Path) -> None:
    student, _, optimiser = networks
    found = read_authors(written(tmp_path / "checkpoint.pth", authors_file.saved(*networks)))
    expected = {
        name.replace("backbone.", "encoder.")
        .replace("head.mlp.", "projector.layers.")
        .replace("head.last_layer.weight_v", "assigner.directions_KD"): optimiser.state[p]["mu"]
        for name, p in student.named_parameters()
        if p.requires_grad
    }
    assert found.moments.keys() == expected.keys()
    assert all(torch.equal(found.moments[name], moment) for name, moment in expected.items())
    assert len({round(float(moment.norm()), 9) for moment in expected.values()}) > 20  # they can be told apart
    assert found.epoch == 3


def test_the_new_weight_norm_is_read_too(content: dict[str, Any], tmp_path: Path) -> None:
    for branch in ("student", "teacher"):
        for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
            tensor = content[branch].pop(f"module.head.last_layer.{old}")
            content[branch][f"module.head.last_layer.parametrizations.weight.{new}"] = tensor
    found = read_authors(written(tmp_path / "a.pth", content))
    assert torch.equal(
        found.branches["student"]["assigner.directions_KD"],
        content["student"]["module.head.last_layer.parametrizations.weight.original1"],
    )
    assert "assigner.directions_KD" in found.moments


def test_the_options_of_the_script_become_settings(content: dict[str, Any], tmp_path: Path) -> None:
    arguments = read_authors(written(tmp_path / "a.pth", content)).arguments
    assert arguments == authors_file.ARGUMENTS
    settings, missing = settings_of_authors(arguments)
    assert missing == []
    assert settings == {
        "reading": "authors",
        "epochs": 8,
        "batch_size": 8,
        "micro_batch": None,
        "seed": 5,
        "global_scale": [0.2, 1.0],
        "local_scale": [0.05, 0.2],
        "local_views": 0,
        "block_size": 16,
        "teacher_momentum": [0.99, 1.0],
        "lr": [0.45, 0.0048],
        "warmup_epochs": 0,
        "weight_decay": [1e-6, 1e-6],
    }
    accumulated, _ = settings_of_authors({**arguments, "gradient_accumulation_steps": 4})
    assert (accumulated["batch_size"], accumulated["micro_batch"]) == (32, 8)
    assert settings_of_authors({"epochs": 3, "batch_size_per_gpu": "x", "world_size": None})[1] == [
        "batch_size", "micro_batch", "seed", "global_scale", "local_scale", "local_views", "block_size",
        "teacher_momentum", "lr", "warmup_epochs", "weight_decay",
    ]  # fmt: skip


def without(name: str) -> Any:
    def change(content: dict[str, Any]) -> None:
        for branch in ("student", "teacher"):
            del content[branch][f"module.{name}"]

    return change


def replaced(name: str, tensor: Tensor) -> Any:
    def change(content: dict[str, Any]) -> None:
        for branch in ("student", "teacher"):
            content[branch][f"module.{name}"] = tensor

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("head.mlp.3.weight"), r"projector.*lacks head\.mlp\.3\.weight"),
        (replaced("head.mlp.8.weight", torch.ones(2)), r"projector.*also has head\.mlp\.8\.weight"),
        (replaced("head.mlp.3.weight", torch.ones(24, 3)), r"head\.mlp\.3\.weight is \[24, 3\], expected \[24, 24\]"),
        (replaced("head.mlp.6.weight", torch.tensor(1.0)), r"head\.mlp\.6\.weight is \[\]"),
        (without("head.last_layer.weight_v"), r"prototypes.*weight_v is missing, expected \[K, 16\]"),
        (replaced("head.last_layer.weight_v", torch.ones(64, 3)), r"weight_v is \[64, 3\], expected \[K, 16\]"),
        (replaced("head.last_layer.weight_g", torch.full((64, 1), 2.0)), r"different lengths"),
        (replaced("head.mlp.0.bias", torch.full((24,), torch.nan)), r"0\.bias contains values that are not finite"),
        (lambda content: content.pop("student"), r"not in the format|no branch 'student'|does not match"),
        (lambda content: content["student"].pop("module.backbone.layer4.1.conv2.weight"), r"no branch 'student'"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(
    change: Any, said: str, content: dict[str, Any], tmp_path: Path
) -> None:
    change(content)
    with pytest.raises(CheckpointError, match=said):
        read_authors(written(tmp_path / "a.pth", content))


def test_a_projector_without_batch_norm_is_refused(tmp_path: Path) -> None:
    networks = authors_file.trained(lambda: small(batch_norm=False), images=pictures(32), steps=1)
    file = written(tmp_path / "a.pth", authors_file.saved(*networks))
    with pytest.raises(CheckpointError, match=r"no projector that CARP can use.*batch norm"):
        carp.load(file, layer="projector")
    assert carp.load(file).branch == "teacher"  # the encoder alone is fine


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.pop("optimizer"), "no state of the optimiser"),
        (lambda content: content.update(optimizer=3), "no state of the optimiser"),
        (lambda content: content["optimizer"]["param_groups"].pop(), "not those of the student"),
        (lambda content: content["optimizer"]["param_groups"][0]["params"].pop(), "not those of the student"),
        (lambda content: content["optimizer"]["state"].pop(0), r"no momentum for backbone\.conv1\.weight"),
        (lambda content: content["optimizer"]["state"].__setitem__(1, {"mu": torch.ones(1)}), "no momentum for"),
    ],
)
def test_momentum_that_is_missing_or_does_not_fit_is_left_out_with_the_reason(
    change: Any, said: str, content: dict[str, Any], tmp_path: Path
) -> None:
    content["optimizer"] = {
        "state": dict(content["optimizer"]["state"]),
        "param_groups": [{**group, "params": list(group["params"])} for group in content["optimizer"]["param_groups"]],
    }
    change(content)
    found = read_authors(written(tmp_path / "a.pth", content))
    assert found.moments == {}
    assert re.search(said, found.no_moments)


def test_only_files_with_both_have_branches_and_only_theirs_a_projector(tmp_path: Path) -> None:
    tensors = narrow().state_dict()
    for method in ("swav", "dino-full"):
        file = written(tmp_path / f"{method}.pth", released(method, tensors)[0])
        with pytest.raises(CheckpointError, match="without its projector"):
            carp.load(file, layer="projector")
    assert carp.load(tmp_path / "dino-full.pth", "student").branch == "student"
    assert carp.load(tmp_path / "swav.pth").branch == ""
    for branch in ("student", "untrained", "raw pixels"):
        with pytest.raises(CheckpointError, match=rf"no branch '{branch}'; it contains one encoder"):
            carp.load(tmp_path / "swav.pth", branch)
    with pytest.raises(CheckpointError, match=r"no branch 'untrained'; it contains student and teacher"):
        carp.load(tmp_path / "dino-full.pth", "untrained")
    with pytest.raises(ModelError, match="layer='projector'"):
        _ = carp.load(tmp_path / "swav.pth").prototypes
