"""Files that do not fit: one line that says what is wrong and what comes nearest."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from carp.encoders.foreign import METHODS, read_foreign
from carp.errors import CheckpointError
from tests.encoders.foreign.layouts import narrow, released

ELSEWHERE = {"simclr-v2", "cifar-resnet", "resnet", "timm-vit", "deit", "efficientnet-lite0"}


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return narrow()


def refusal(found: Any, path: Path, method: str | None = None) -> str:
    torch.save(found, path)
    with pytest.raises(CheckpointError) as caught:
        read_foreign(path, method)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_missing_tensor_is_named(source: nn.Module, tmp_path: Path) -> None:
    found = released("moco-v3", source.state_dict())[0]
    for gone in ("layer3.0.bn2.running_mean", "layer1.1.conv2.weight", "conv1.weight", "layer4.0.downsample.0.weight"):
        lacking = {k: v for k, v in found["state_dict"].items() if k != f"module.base_encoder.{gone}"}
        message = refusal({**found, "state_dict": lacking}, tmp_path / "a.pth")
        assert "nearest format is moco-v3" in message
        assert gone in message or gone == "conv1.weight"


def test_a_missing_block_is_not_a_shorter_network(source: nn.Module, tmp_path: Path) -> None:
    """The first of two blocks is gone: the second tells that there were two."""
    state = {k: v for k, v in source.state_dict().items() if not k.startswith("layer1.0.")}
    assert "it lacks layer1.0.conv1.weight" in refusal(state, tmp_path / "a.pth")


def test_a_wrong_shape_is_shown(source: nn.Module, tmp_path: Path) -> None:
    state = dict(source.state_dict())
    state["layer2.0.bn1.weight"] = torch.ones(5)
    assert "it has layer2.0.bn1.weight [5] instead of [8]" in refusal(state, tmp_path / "a.pth")


def test_tensors_that_the_network_does_not_have(source: nn.Module, tmp_path: Path) -> None:
    state = {**source.state_dict(), "layer1.1.downsample.0.weight": torch.ones(16, 16, 1, 1)}
    assert "layer1.1.downsample.0.weight, which" in refusal(state, tmp_path / "a.pth")


def test_whole_numbers_are_no_weights(source: nn.Module, tmp_path: Path) -> None:
    state = {**source.state_dict(), "conv1.weight": source.state_dict()["conv1.weight"].char()}
    assert "it has conv1.weight" in refusal(state, tmp_path / "a.pth")


def test_extra_keys_outside_the_encoder_are_listed(source: nn.Module, tmp_path: Path) -> None:
    found = released("moco-v2", source.state_dict())[0]
    found["state_dict"]["module.something.else"] = torch.ones(2)
    torch.save(found, tmp_path / "a.pth")
    weights = read_foreign(tmp_path / "a.pth")
    assert weights.method.name == "moco-v2"
    assert weights.unexpected == ("something.else",)
    assert {"encoder_q.fc.0.weight", "queue", "something.else"} <= set(weights.leftovers)


@pytest.mark.parametrize("method", ["moco-v2", "swav", "dino-full", "torchvision", "resnet", "vissl", "mira"])
def test_extra_keys_inside_the_encoder_refuse_the_file(method: str, source: nn.Module, tmp_path: Path) -> None:
    extra = {f"layer1.{i}.se.fc.weight": torch.ones(4, 4) for i in range(2)}
    for found in released(method, {**source.state_dict(), **extra}):
        message = refusal(found, tmp_path / "a.pth")
        assert "layer1.0.se.fc.weight" in message
        assert "does not have" in message


@pytest.mark.parametrize("method", [m.name for m in METHODS if m.name not in ELSEWHERE])
def test_a_wrong_name_is_told_the_right_one(method: str, source: nn.Module, tmp_path: Path) -> None:
    """No file of another layout passes for MoCo-v3's or CoKe's, and theirs not for it."""
    for wrong in ("moco-v3", "coke"):
        found = released(method, source.state_dict())[-1]
        bare = set(found) & {"conv1.weight"} and "fc.weight" not in found
        if method == wrong or bare:  # a bare encoder may come from anywhere
            continue
        message = refusal(found, tmp_path / "a.pth", wrong)
        assert f"not in the format of {wrong}: it looks like " in message
        if method not in {"carl", "sela-v2"}:
            assert f"looks like {method} " in message


def test_a_supervised_network_does_not_pass_for_swav(source: nn.Module, tmp_path: Path) -> None:
    message = refusal(released("torchvision", source.state_dict())[0], tmp_path / "a.pth", "swav")
    assert "looks like torchvision (Supervised (torchvision))" in message


def test_a_bare_encoder_may_be_named(source: nn.Module, tmp_path: Path) -> None:
    torch.save(source.state_dict(), tmp_path / "a.pth")
    assert read_foreign(tmp_path / "a.pth", "moco-v2").method.name == "moco-v2"


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'swaw' is not a format of weights\. Did you mean 'swav'\?"):
        read_foreign(tmp_path / "a.pth", "swaw")


def test_other_architectures(tmp_path: Path) -> None:
    small = timm.create_model("resnet18", channels=(4, 4, 4, 4), stem_type="deep", stem_width=4)
    assert "an encoder that CARP knows: its tensors are" in refusal(small.state_dict(), tmp_path / "a.pth")
    state = {**narrow().state_dict(), "conv1.weight": torch.ones(64, 3, 3, 3)}
    assert "its first convolution is [64, 3, 3, 3], expected [64, 3, 7, 7]" in refusal(state, tmp_path / "a.pth")
    grey = {**narrow().state_dict(), "conv1.weight": torch.ones(64, 1, 7, 7)}
    assert "conv1.weight [64, 1, 7, 7]" in refusal(grey, tmp_path / "a.pth")


@pytest.mark.parametrize("found", [torch.ones(3), [torch.ones(3)], {"epoch": 3}, {}, {"state_dict": {"a": 1}}, 7])
def test_no_state_dict(found: Any, tmp_path: Path) -> None:
    assert "Give a state dict" in refusal(found, tmp_path / "a.pth")


def test_numbers_that_are_not_finite(source: nn.Module, tmp_path: Path) -> None:
    state = {n: t.clone() for n, t in source.state_dict().items()}
    state["bn1.running_var"][3] = torch.inf  # half precision ends at 65,504
    torch.save(state, tmp_path / "a.pth")
    assert read_foreign(tmp_path / "a.pth").tensors["bn1.running_var"][3] == torch.inf
    state["layer1.0.conv1.weight"][0, 0] = torch.nan
    assert "layer1.0.conv1.weight contains values that are not finite" in refusal(state, tmp_path / "a.pth")


def test_one_number_cannot_pass_for_a_network(source: nn.Module, tmp_path: Path) -> None:
    """Expanded tensors: a small file that would fill the memory."""
    state = {n: torch.zeros((), dtype=t.dtype).expand(t.shape) for n, t in source.state_dict().items()}
    assert "but claims" in refusal(state, tmp_path / "a.pth")


def test_the_checksum_is_that_of_the_file(source: nn.Module, tmp_path: Path) -> None:
    import hashlib

    torch.save(source.state_dict(), tmp_path / "a.pth")
    weights = read_foreign(tmp_path / "a.pth")
    assert weights.sha256 == hashlib.sha256((tmp_path / "a.pth").read_bytes()).hexdigest()
