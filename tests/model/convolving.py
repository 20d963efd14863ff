"""Compares convolutions that compute in different ways."""

import torch
from torch import nn


def assert_convolves_alike(ours: nn.Module, theirs: nn.Conv2d, side: tuple[int, int]) -> None:
    """Values and gradients of two convolutions in float64 agree, in whatever layout the maps are."""
    x = torch.randn(3, theirs.in_channels, *side, dtype=torch.double, requires_grad=True)
    own_x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    above = torch.randn_like(theirs(x))
    theirs(x).backward(above)
    ours(own_x).backward(above)
    torch.testing.assert_close(ours(own_x), theirs(x))
    torch.testing.assert_close(own_x.grad, x.grad)
    for wanted, found in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
