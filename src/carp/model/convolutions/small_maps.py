"""Speeds up convolutions over maps of few pixels on a CPU (measured by `python -m benchmarks.convolutions`).

If every output of a convolution sees every pixel of its map, the convolution is a linear layer. This is so for the 3×3
filters of the last stage of a ResNet if the map has 2×2 pixels, which it has for views of 64 pixels, or of 32 with the
stem of `cifar10-cpu`. Of the 36 products that oneDNN computes there, 20 are with padding. Here one matrix product has
the other 16. Values and gradients are the same up to rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def speed_up_small_maps(module: nn.Module) -> nn.Module:
    """Let the convolutions of a module compute small maps by a matrix product; its tensors stay the same."""
    for part in module.modules():
        if type(part) is nn.Conv2d and _may_see_all(part):
            part.__class__ = _Convolution
    return module


def _may_see_all(convolution: nn.Conv2d) -> bool:
    return (
        convolution.groups == 1
        and convolution.dilation == (1, 1)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
        and max(convolution.padding) > 0
    )


class _Convolution(nn.Conv2d):
    """A convolution that is a matrix product if every output sees every pixel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name that nn.Conv2d uses
        if input.device.type != "cpu" or input.dim() != 4:
            return super().forward(input)
        assert not isinstance(self.padding, str)
        rows, columns = (
            _places(*axis) for axis in zip(input.shape[2:], self.kernel_size, self.stride, self.padding, strict=True)
        )
        if not rows or not columns:
            return super().forward(input)
        return self._multiply(input, rows, columns)

    def _multiply(self, x: Tensor, rows: list[range], columns: list[range]) -> Tensor:
        places = [i * self.kernel_size[1] + j for down in rows for across in columns for i in down for j in across]
        filters = self.weight.permute(0, 2, 3, 1).flatten(1, 2)  # [O, K·L, C]
        matrix = filters.index_select(1, torch.tensor(places)).view(len(filters) * len(rows) * len(columns), -1)
        bias = None if self.bias is None else self.bias.repeat_interleave(len(rows) * len(columns))
        y = F.linear(x.permute(0, 2, 3, 1).flatten(1), matrix, bias)
        y = y.view(len(x), len(filters), len(rows), len(columns))
        return y.contiguous(memory_format=torch.channels_last)


def _places(size: int, kernel: int, stride: int, padding: int) -> list[range]:
    """Return the part of the filter that lies over the map, for every output of one axis; none if a pixel is unseen."""
    first = [padding - stride * output for output in range((size + 2 * padding - kernel) // stride + 1)]
    seen = [range(start, start + size) for start in first]
    return seen if all(part.start >= 0 and part.stop <= kernel for part in seen) else []
