"""Speeds up depthwise convolutions on a CPU (measured by `python -m benchmarks.convolutions`).

**Small maps.** oneDNN computes the gradient of a filter that is larger than its map up to 120 times more slowly than
this module. EfficientNet-Lite0 on views of 64 pixels has seven of these convolutions. Here the gradient of every filter
weight is the sum of the products of two shifted maps, of which few overlap when the maps are small. Values and
gradients are the same up to rounding.

**bf16.** oneDNN computes depthwise convolutions more slowly in bf16 than in fp32: with autocast, EfficientNet-Lite0
would take about twice as long as without. Under autocast, these convolutions therefore compute in fp32 and round their
results.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import Conv2dSame, pad_same
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def speed_up_depthwise(module: nn.Module) -> nn.Module:
    """Replace how the depthwise convolutions of a module compute; its tensors stay the same."""
    for part in module.modules():
        faster = _FASTER.get(type(part))
        if faster is not None and isinstance(part, nn.Conv2d) and _is_depthwise(part):
            part.__class__ = faster
    return module


def _is_depthwise(convolution: nn.Conv2d) -> bool:
    return (
        convolution.groups == convolution.in_channels == convolution.out_channels > 1
        and max(convolution.kernel_size) > 1
        and convolution.dilation == (1, 1)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
    )


class _Depthwise(nn.Conv2d):
    """A depthwise convolution that avoids the slow paths of oneDNN."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name that nn.Conv2d uses
        if input.device.type != "cpu" or input.dim() != 4:
            return super().forward(input)
        if not torch.is_autocast_enabled("cpu"):
            return self._convolve(input)
        dtype = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            return self._convolve(input.to(self.weight.dtype)).to(dtype)

    def _convolve(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[-2:]
        if rows >= self.kernel_size[0] and columns >= self.kernel_size[1]:
            return super().forward(x)
        y: Tensor = _SmallMap.apply(x, self.weight, self.stride, self.padding)
        return y if self.bias is None else y + self.bias[:, None, None]


class _DepthwiseSame(_Depthwise):
    """The same for the padding of TensorFlow, which depends on the size of the map."""

    def _convolve(self, x: Tensor) -> Tensor:
        return super()._convolve(pad_same(x, self.kernel_size, self.stride, self.dilation))


_FASTER: Mapping[type[nn.Module], type[_Depthwise]] = {nn.Conv2d: _Depthwise, Conv2dSame: _DepthwiseSame}


class _SmallMap(torch.autograd.Function):
    """A depthwise convolution [N, C, H, W], [C, 1, K, L] -> [N, C, H', W']."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        for_x = for_weight = None
        if ctx.needs_input_grad[0]:
            shape = (None, ctx.stride, ctx.padding, [1, 1], False, [0, 0], len(weight))
            for_x = torch.ops.aten.convolution_backward(above, x, weight, *shape, [True, False, False])[0]
        if ctx.needs_input_grad[1]:
            for_weight = _filter_gradient(x, above, weight, ctx.stride, ctx.padding)
        return for_x, for_weight, None, None


def _filter_gradient(
    x: Tensor, above: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Return the gradient of the filters, [C, 1, K, L], from the input and the gradient of the output."""
    x, above = x.movedim(1, -1), above.movedim(1, -1)  # channels last, as they are in memory
    gradient = x.new_zeros(*weight.shape[2:], len(weight))
    rows = [_overlap(i, x.shape[1], above.shape[1], stride[0], padding[0]) for i in range(weight.shape[2])]
    columns = [_overlap(j, x.shape[2], above.shape[2], stride[1], padding[1]) for j in range(weight.shape[3])]
    for i, (row_in, row_out) in enumerate(rows):
        for j, (column_in, column_out) in enumerate(columns):
            gradient[i, j] = (x[:, row_in, column_in] * above[:, row_out, column_out]).sum(dim=(0, 1, 2))
    return gradient.movedim(-1, 0)[:, None]


def _overlap(place: int, size: int, outputs: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Return the inputs that one row or column of a filter sees, and the outputs to which it contributes."""
    shift = place - padding
    first = max(0, -(shift // stride))  # the first output whose input is inside the map
    last = min(outputs, (size - 1 - shift) // stride + 1)
    if first >= last:
        return slice(0, 0), slice(0, 0)
    return slice(first * stride + shift, (last - 1) * stride + shift + 1, stride), slice(first, last)
