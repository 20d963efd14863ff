"""Depthwise convolutions: the values and gradients of torch, in at least its precision, and nothing else changes."""

import copy
from functools import partial

import pytest
import timm
import torch
from timm.layers import Conv2dSame
from torch import nn

from carp.model.convolutions.depthwise import speed_up_depthwise
from tests.model.convolving import assert_convolves_alike


@pytest.mark.parametrize("side", [(1, 1), (2, 2), (3, 4), (4, 9)])
@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
@pytest.mark.parametrize(("kernel", "padding"), [(5, 2), (5, (4, 3)), ((3, 7), (1, 3)), (4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(
    side: tuple[int, int], stride: int, kernel: int, padding: int, bias: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 6, kernel, stride=stride, padding=padding, groups=6, bias=bias).double()
    fast = speed_up_depthwise(copy.deepcopy(plain))
    assert type(fast) is not nn.Conv2d
    assert_convolves_alike(fast, plain, side)


def test_the_gradient_is_right_by_finite_differences() -> None:
    torch.manual_seed(0)
    fast = speed_up_depthwise(nn.Conv2d(2, 2, 5, padding=2, groups=2).double())
    x = torch.randn(2, 2, 3, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: fast(x), (x, *fast.parameters()))


def test_only_depthwise_convolutions_with_a_filter_change() -> None:
    others = [
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv2d(4, 4, 1, groups=4),
        nn.Conv2d(4, 4, 3, groups=4, dilation=2),
        nn.Conv2d(4, 4, 3, groups=4, padding="same"),
        nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
        nn.Conv2d(1, 1, 3),
    ]
    speed_up_depthwise(nn.Sequential(*others))
    assert all(type(each) is nn.Conv2d for each in others)


def test_large_maps_take_torchs_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("carp.model.convolutions.depthwise._SmallMap.apply", refuse)
    fast = speed_up_depthwise(nn.Conv2d(4, 4, 3, padding=1, groups=4))
    fast(torch.randn(1, 4, 3, 3)).sum().backward()
    with pytest.raises(AssertionError):
        fast(torch.randn(1, 4, 2, 2))


@pytest.mark.parametrize("side", [2, 7])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [partial(nn.Conv2d, padding=1), Conv2dSame])
def test_autocast_rounds_only_the_result(side: int, given: torch.dtype, kind: type[nn.Conv2d]) -> None:
    torch.manual_seed(0)
    plain = kind(4, 4, 3, stride=2, groups=4)
    fast = speed_up_depthwise(copy.deepcopy(plain))
    x = torch.randn(2, 4, side, side).to(given)
    with torch.autocast("cpu", torch.bfloat16):
        y = fast(x)
        assert torch.is_autocast_enabled("cpu")
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, plain(x.float()).bfloat16())
    above = torch.randn_like(y)
    y.backward(above)
    plain(x.float()).backward(above.float())
    for wanted, found in zip(plain.parameters(), fast.parameters(), strict=True):
        assert found.grad is not None
        assert found.grad.dtype == torch.float32
        torch.testing.assert_close(found.grad, wanted.grad)


def test_a_network_keeps_its_tensors_and_copies_keep_the_speed() -> None:
    plain = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    fast = copy.deepcopy(speed_up_depthwise(copy.deepcopy(plain)))
    assert list(fast.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(fast(x), plain(x))
    plain(x).square().mean().backward()
    fast(x).square().mean().backward()
    for wanted, found in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5)
