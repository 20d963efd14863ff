"""Convolutions over small maps: the values and gradients of torch, and nothing else changes."""

import copy

import pytest
import timm
import torch
from torch import nn

from carp.model.convolutions.small_maps import speed_up_small_maps
from tests.model.convolving import assert_convolves_alike


@pytest.mark.parametrize("side", [(1, 1), (2, 2), (1, 3), (2, 4), (3, 3), (5, 1)])
@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 2), (5, (4, 3)), ((3, 7), (1, 3)), (4, 3), (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(
    side: tuple[int, int], stride: int, kernel: int, padding: int, bias: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 5, kernel, stride=stride, padding=padding, bias=bias).double()
    fast = speed_up_small_maps(copy.deepcopy(plain))
    assert type(fast) is not nn.Conv2d
    assert_convolves_alike(fast, plain, side)


@pytest.mark.parametrize(
    ("side", "kernel", "stride", "multiplied"),
    [(1, 3, 1, True), (2, 3, 1, True), (2, 3, 2, True), (3, 3, 1, False), (4, 3, 2, False), (3, 5, 1, True)],
)
def test_it_is_a_matrix_product_if_every_output_sees_every_pixel(
    monkeypatch: pytest.MonkeyPatch, side: int, kernel: int, stride: int, multiplied: bool
) -> None:
    fast = speed_up_small_maps(nn.Conv2d(2, 2, kernel, stride=stride, padding=kernel // 2))
    monkeypatch.setattr(fast, "_multiply", lambda *_: "multiplied")
    assert (fast(torch.randn(1, 2, side, side)) == "multiplied") is multiplied


def test_only_padded_convolutions_of_all_channels_change() -> None:
    others = [
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ]
    speed_up_small_maps(nn.Sequential(*others))
    assert all(type(each) is nn.Conv2d for each in others)


def test_a_map_without_output_is_refused_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        speed_up_small_maps(nn.Conv2d(2, 2, (5, 9), padding=1))(torch.randn(1, 2, 2, 2))


def test_autocast_computes_in_half_and_the_weights_get_a_full_gradient() -> None:
    torch.manual_seed(0)
    fast = nn.Conv2d(8, 8, 3, padding=1)
    speed_up_small_maps(fast)
    x = torch.randn(4, 8, 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = fast(x)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.float().sum().backward()
    assert fast.weight.grad is not None
    assert fast.weight.grad.dtype == torch.float32


def test_a_network_keeps_its_tensors_and_copies_keep_the_speed() -> None:
    torch.manual_seed(0)
    plain = timm.create_model("resnet18", num_classes=0).double()
    fast = copy.deepcopy(speed_up_small_maps(copy.deepcopy(plain)))
    assert list(fast.state_dict()) == list(plain.state_dict())
    x = torch.randn(4, 3, 64, 64, dtype=torch.double)
    torch.testing.assert_close(fast(x), plain(x))
    plain(x).square().mean().backward()
    fast(x).square().mean().backward()
    for wanted, found in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
