"""Narrow 1×1 convolutions with a stride have the right gradient, whatever the memory layout."""

import pytest
import torch
from torch import nn

from carp.config import resolve
from carp.model.convolutions.select_pixels import select_pixels_first
from carp.training.loop import build_model

CPU = torch.device("cpu")


def gradients(module: nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad(set_to_none=True)
    module(images).square().mean().backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("side", [1, 7, 8])
@pytest.mark.parametrize("stride", [2, (3, 2), (1, 2)])
@pytest.mark.parametrize("channels", [1, 4, 7, 15, 16])
def test_output_and_gradients_are_those_of_double_precision(channels: int, stride: int, side: int) -> None:
    torch.manual_seed(0)
    exact = nn.Conv2d(channels, 8, 1, stride=stride).double()
    narrow = nn.Conv2d(channels, 8, 1, stride=stride)
    narrow.load_state_dict(exact.state_dict())
    narrow = select_pixels_first(narrow).to(memory_format=torch.channels_last)
    x = torch.randn(16, channels, side, side, dtype=torch.double, requires_grad=True)
    x_last = x.detach().float().contiguous(memory_format=torch.channels_last).requires_grad_()
    for _ in range(3):
        x.grad = x_last.grad = None
        wanted, found = gradients(exact, x), gradients(narrow, x_last)
        torch.testing.assert_close(narrow(x_last).double(), exact(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x_last.grad.double(), x.grad, rtol=1e-4, atol=1e-6)
        for name in wanted:
            torch.testing.assert_close(found[name].double(), wanted[name], rtol=1e-4, atol=1e-5)


def test_other_convolutions_stay_as_they_are() -> None:
    others = [
        nn.Conv2d(16, 4, 1, stride=2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 4, 1, stride=2, padding=1),
    ]
    strides = [c.stride for c in others]
    select_pixels_first(nn.Sequential(*others))
    assert [c.stride for c in others] == strides
    assert not any(c._forward_pre_hooks for c in others)


def test_a_narrow_encoder_trains_alike_in_both_memory_layouts() -> None:
    values = {"encoder": "resnet18", "encoder_options": {"channels": [4, 4, 8, 8]}, "global_size": 32, "batch_size": 8}
    found = []
    for channels_last in (False, True):
        model = build_model(resolve({**values, "channels_last": channels_last}, num_images=64), CPU)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
        found.append((list(model.state_dict()), gradients(model.student.encoder, images)))
    (names, wanted), (other_names, other) = found
    assert names == other_names
    for name, gradient in wanted.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))
