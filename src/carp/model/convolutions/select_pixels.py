"""Works around a bug of oneDNN in strided 1×1 convolutions with few channels.

With images in channels-last layout on a CPU, the gradient of such a convolution's weights is written past the end of a
workspace if it has fewer input channels than a vector register has numbers: 8 with AVX2, 16 with AVX-512
(https://github.com/uxlfoundation/oneDNN/issues/6035). The process crashes, hangs, or continues with wrong gradients.
A 1×1 convolution with a stride of s only sees every s-th pixel. Selecting these pixels and convolving them without a
stride is the same function, and oneDNN computes it correctly.
"""

from typing import Any

from torch import Tensor, nn

_LONGEST_VECTOR = 16  # float32 numbers, with AVX-512; one limit for all processors, so that they compute the same


def select_pixels_first(module: nn.Module) -> nn.Module:
    """Let narrow 1×1 convolutions with a stride select their pixels; the tensors of the module stay the same."""
    for convolution in module.modules():
        if isinstance(convolution, nn.Conv2d) and _is_affected(convolution):
            convolution.register_forward_pre_hook(_Select(*convolution.stride))
            convolution.stride = (1, 1)
    return module


def _is_affected(convolution: nn.Conv2d) -> bool:
    return (
        convolution.kernel_size == (1, 1)
        and max(convolution.stride) > 1
        and convolution.padding == (0, 0)
        and convolution.in_channels // convolution.groups < _LONGEST_VECTOR
    )


class _Select:
    """Takes every row and column that a stride would."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        (x,) = inputs
        return (x[..., :: self.rows, :: self.columns],)
