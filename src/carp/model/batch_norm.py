"""Batch norm over the images of all processes, so that it does not matter how many of them share a batch.

On CUDA this is torch's own; elsewhere torch has none, and the statistics are two sums over processes, each with its
gradient. They are formed in two passes (mean, then squares of what differs from it), which keeps their digits.
"""

from typing import Any, cast

import torch
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from carp import distributed


def synchronise(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with every batch norm synchronised; names and values of its tensors stay."""
    if distributed.world_size() == 1:
        return module
    if device.type == "cuda":
        return cast(nn.Module, convert_sync_batchnorm(module))
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.__class__ = _synchronised(type(norm))
    return module


def _synchronised(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """A kind of batch norm whose statistics are those of all processes while it trains."""

    class Synchronised(kind):  # type: ignore[valid-type,misc]
        def forward(self, x: Tensor) -> Any:
            if not self.training:
                return super().forward(x)
            y = _normalise(self, x)
            # timm's own batch norm has an activation in it
            return self.act(self.drop(y)) if hasattr(self, "act") else y

    return Synchronised


def _normalise(norm: _BatchNorm, x: Tensor) -> Tensor:
    dims = [d for d in range(x.ndim) if d != 1]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    wide = x.float() if x.dtype in {torch.bfloat16, torch.float16} else x
    count = wide.new_full((1,), x.numel() / x.shape[1])
    sums = _Sum.apply(torch.cat([wide.sum(dims), count]))
    total = sums[-1].detach()
    mean = sums[:-1] / total
    centred = wide - mean.view(shape)
    variance = _Sum.apply(centred.square().sum(dims)) / total
    _keep_statistics(norm, mean.detach(), variance.detach(), total)
    y: Tensor = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        y = torch.addcmul(norm.bias.view(shape), y, norm.weight.view(shape))
    return y.to(x.dtype)


@torch.no_grad()
def _keep_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, total: Tensor) -> None:
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    pace = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, pace)
    norm.running_var.lerp_(variance * total / (total - 1), pace)


class _Sum(torch.autograd.Function):
    """The sum over processes. As every process uses it, so its gradient is the sum of all of theirs."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        distributed.add_up([total])
        return total

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Any:
        total = gradient.clone()
        distributed.add_up([total])
        return total
