"""Strided 1×1 convolutions of few channels, computed without a defect of oneDNN.

For images in the layout `channels_last`, oneDNN's gradient of the weights of such a convolution writes past its
workspace if the input has fewer channels than a vector register has numbers (oneDNN issue 6035). Gradients are wrong,
or the process crashes later. A strided 1×1 convolution is a plain one of every s-th pixel, which is not affected.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SubsampledConvolution(nn.Conv2d):
    """A 1×1 convolution that selects its pixels before it multiplies them."""

    def forward(self, images: Tensor) -> Tensor:
        """Return what `Conv2d` returns."""
        rows, columns = self.stride
        return F.conv2d(images[:, :, ::rows, ::columns], self.weight, self.bias)


def replace_narrow_convolutions(network: nn.Module) -> None:
    """Let the affected convolutions of a network compute as `SubsampledConvolution`; names and weights stay."""
    numbers = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
    for module in network.modules():
        if type(module) is nn.Conv2d and module.in_channels < numbers and _is_strided_1x1(module):
            module.__class__ = SubsampledConvolution


def _is_strided_1x1(convolution: nn.Conv2d) -> bool:
    return (
        convolution.kernel_size == (1, 1)
        and convolution.stride != (1, 1)
        and convolution.padding == (0, 0)
        and convolution.groups == 1
    )
