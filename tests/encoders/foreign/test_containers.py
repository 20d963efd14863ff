"""A supervised ResNet in every container that people use: never taken for a method that computes differently."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from carp.encoders.foreign import foreign_encoder, read_foreign
from carp.errors import CheckpointError
from tests.encoders.foreign.layouts import (
    Tensors,
    heads,
    in_tensorflow_order,
    narrow,
    pictures,
    prefixed,
    with_statistics_last,
)

CONTAINERS: dict[str, Callable[[Tensors], dict[str, Any]]] = {
    "the file": lambda state: state,
    "state_dict": lambda state: {"state_dict": state},
    "model": lambda state: {"model": state},
    "DataParallel": lambda state: {"state_dict": prefixed(state, "module.")},
    "DataParallel, bare": lambda state: prefixed(state, "module."),
    "compiled": lambda state: {"model": prefixed(state, "_orig_mod.")},
    "compiled inside": lambda state: {"state_dict": prefixed(state, "module._orig_mod.module.")},
    "backbone, compiled": lambda state: {"state_dict": prefixed(state, "backbone._orig_mod.")},
    "encoder.module.": lambda state: {"state_dict": prefixed(state, "encoder.module.")},
    "encoder.module., bare": lambda state: prefixed(state, "encoder.module."),
    "optimiser beside": lambda state: {"state_dict": state, "optimizer": {"state": {}}, "epoch": 90},
    "torchvision's training": lambda state: {
        "model": state,
        "optimizer": {},
        "lr_scheduler": {},
        "epoch": 1,
        "args": 0,
    },
    "timm's training": lambda state: {"arch": "resnet50", "version": 2, "state_dict": state, "epoch": 3},
    "averages of timm": lambda state: {"state_dict": zeroed(state), "state_dict_ema": state},
    "averages of torchvision": lambda state: {
        "model": zeroed(state),
        "model_ema": {"n_averaged": torch.tensor(7), **prefixed(state, "module.")},
    },
    "averages of torchvision, bare": lambda state: {"model": zeroed(state), "model_ema": state},
}
ORDERS: dict[str, Callable[[Tensors], Tensors]] = {
    "as it is": lambda state: state,
    "zero counters": lambda state: {n: torch.zeros_like(t) if n.endswith("tracked") else t for n, t in state.items()},
    "no counters": lambda state: {n: t for n, t in state.items() if not n.endswith("tracked")},
    "parameters before buffers": lambda state: {
        **{n: t for n, t in state.items() if "running" not in n and "tracked" not in n},
        **{n: t for n, t in state.items() if "running" in n or "tracked" in n},
    },
    "parameters before statistics, no counters": with_statistics_last,
    "sorted": lambda state: dict(sorted(state.items())),
    "channels last": lambda state: {
        n: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for n, t in state.items()
    },
    "half precision": lambda state: {n: t.half().float() if t.is_floating_point() else t for n, t in state.items()},
}


def zeroed(state: Tensors) -> Tensors:
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return narrow()


@pytest.mark.parametrize("classifier", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_it_computes_as_trained_or_asks(
    container: str, order: str, classifier: bool, source: nn.Module, tmp_path: Path
) -> None:
    state = OrderedDict(source.state_dict()) | (heads(fc__weight=(10, 48), fc__bias=(10,)) if classifier else {})
    changed = ORDERS[order](state)
    torch.save(CONTAINERS[container](changed), tmp_path / "a.pth")
    reference = narrow()
    reference.load_state_dict({n: t for n, t in changed.items() if not n.startswith("fc.")}, strict=False)
    try:
        encoder, weights = foreign_encoder(tmp_path / "a.pth")
    except CheckpointError as error:
        asked = str(error)
        assert order in {"zero counters", "parameters before statistics, no counters"}, asked
        assert "Name the right one" in asked
        others = [name for name in ("torchvision", "timm", "resnet") if f" {name}:{tmp_path / 'a.pth'}" in asked]
        rivals = [name for name in ("simclr", "byol") if f" {name}:{tmp_path / 'a.pth'}" in asked]
        assert len(others) == 1
        assert len(rivals) == 1
        encoder, weights = foreign_encoder(tmp_path / "a.pth", others[0])
    assert weights.method.name in {"torchvision", "timm", "resnet", "lightning"}
    with torch.inference_mode():
        assert torch.equal(encoder(pictures()), reference(pictures()))


def test_the_two_that_cannot_be_told_apart_ask(source: nn.Module, tmp_path: Path) -> None:
    state = {**ORDERS["zero counters"](source.state_dict()), **heads(fc__weight=(10, 48), fc__bias=(10,))}
    torch.save({"state_dict": state}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"torchvision:.*a\.pth or simclr:.*a\.pth") as caught:
        read_foreign(tmp_path / "a.pth")
    assert "pixels from 0 to 1" in str(caught.value)
    assert read_foreign(tmp_path / "a.pth", "simclr").method.name == "simclr"
    torch.save(with_statistics_last(state), tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"torchvision:.*a\.pth or byol:.*a\.pth"):
        read_foreign(tmp_path / "a.pth")


def test_converted_filters_decide(source: nn.Module, tmp_path: Path) -> None:
    """What converters write keeps TensorFlow's order in memory; PyTorch's own files never have it."""
    state = {**ORDERS["zero counters"](source.state_dict()), **heads(fc__weight=(10, 48), fc__bias=(10,))}
    torch.save({"state_dict": in_tensorflow_order(state)}, tmp_path / "a.pth")
    assert read_foreign(tmp_path / "a.pth").method.name == "simclr"


def test_names_that_would_collide_without_their_wrapper(source: nn.Module, tmp_path: Path) -> None:
    state = {**source.state_dict(), **prefixed(zeroed(source.state_dict()), "module.")}
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"module\.conv1\.weight"):
        read_foreign(tmp_path / "a.pth")
