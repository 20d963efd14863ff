"""Batch norm over the images of all processes, so that the result does not depend on their number.

It exchanges the means and variances of all processes once in the forward pass, and two sums over the gradient once in
the backward pass. torch's own implementation supports CUDA only, and there it makes the host wait for the device in
every layer, because it selects processes by a condition on the number of their images. Here the host never waits.

Shapes: W processes, C channels.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from carp.compute import distributed


def synchronise(module: nn.Module) -> nn.Module:
    """Synchronise every batch norm of a module; the names and values of its tensors do not change."""
    if distributed.world_size() == 1:
        return module
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.__class__ = _synchronised(type(norm))
    return module


def keep_statistics(module: nn.Module) -> nn.Module:
    """Let every batch norm of a module use its running statistics in training, too, and never change them."""
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.__class__ = _kept(type(norm))
            norm.eval()
    return module


def _kept(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return a subclass that stays in evaluation mode."""

    class Kept(kind):  # type: ignore[valid-type,misc]
        def train(self, mode: bool = True) -> Any:  # noqa: ARG002  # it stays as it is
            return super().train(False)

    return Kept


def is_synchronised(module: nn.Module) -> bool:
    """Return whether a module contains batch norm that exchanges its statistics with other processes."""
    return any(getattr(part, "exchanges", False) for part in module.modules())


def _synchronised(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return a subclass whose statistics in training mode are those of all processes."""

    class Synchronised(kind):  # type: ignore[valid-type,misc]
        exchanges = True

        def forward(self, x: Tensor) -> Any:
            if not self.training:
                return super().forward(x)
            y = _normalise(self, x)
            # timm's own batch norm includes an activation
            return self.act(self.drop(y)) if hasattr(self, "act") else y

    return Synchronised


def _normalise(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise by the statistics of all processes, and update the running statistics with them."""
    mean_C, variance_C, count = _statistics(x.detach())
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        pace = 1 / norm.num_batches_tracked.to(mean_C.dtype) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean_C, pace)
        norm.running_var.lerp_(variance_C * (count / (count - 1)), pace)
    y = _Normalise.apply(x, norm.weight, norm.bias, mean_C, variance_C, count, norm.eps)
    return cast(Tensor, y)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and variance of every channel over all processes, and the number of values, a scalar."""
    if x.device.type == "cuda":
        mean_C, scale_C = torch.batch_norm_stats(_wide(x), 0.0)
    else:
        # Computes a whole batch norm for its statistics alone, but is ten times as fast as torch.var_mean
        _, mean_C, scale_C = torch.native_batch_norm(_wide(x), None, None, None, None, True, 0.0, 0.0)
    variance_C = torch.where(scale_C == 0, 0.0, scale_C.pow(-2))  # torch returns a scale of 0 if all values are equal
    parcel = mean_C.new_zeros(distributed.world_size(), 2 * len(mean_C) + 1)  # sums with zeros are exact
    parcel[distributed.rank()] = torch.cat([mean_C, variance_C, mean_C.new_full((1,), x.numel() / x.shape[1])])
    distributed.all_reduce_sum([parcel])
    mean_WC, variance_WC, count_W1 = torch.split(parcel, [len(mean_C), len(mean_C), 1], dim=1)
    share_W1 = count_W1 / count_W1.sum()
    mean_C = (share_W1 * mean_WC).sum(dim=0)
    variance_C = (share_W1 * (variance_WC + (mean_WC - mean_C).square())).sum(dim=0)
    return mean_C, variance_C, count_W1.sum()


class _Normalise(torch.autograd.Function):
    """(x − mean) / deviation · weight + bias, with the mean and standard deviation of x over all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_C: Tensor | None,
        bias_C: Tensor | None,
        mean_C: Tensor,
        variance_C: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight_C, mean_C, variance_C, count)
        ctx.eps = eps
        return F.batch_norm(x, mean_C, variance_C, weight_C, bias_C, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight_C, mean_C, variance_C, count = ctx.saved_tensors
        x, gradient, kind = _wide(x), _wide(gradient), x.dtype
        scale_C = (variance_C + ctx.eps).rsqrt()
        # Sums over this process's images of the gradient, and of its product with the normalised x
        _, product_C, sum_C = torch.ops.aten.native_batch_norm_backward(
            gradient, x, None, None, None, mean_C, scale_C, True, ctx.eps, [False, True, True]
        )
        means_2C = torch.stack([sum_C, product_C])
        distributed.all_reduce_sum([means_2C])
        mean_gradient_C, mean_product_C = means_2C / count
        # (gradient − mean_gradient − normalised x · mean_product) · scale · weight, as a linear combination
        on_gradient_C = scale_C if weight_C is None else scale_C * weight_C
        on_x_C = -on_gradient_C * scale_C * mean_product_C
        rest_C = -on_gradient_C * mean_gradient_C - on_x_C * mean_C
        shape = [1, -1, *[1] * (x.ndim - 2)]
        grad_x = torch.addcmul(rest_C.view(shape), x, on_x_C.view(shape))
        grad_x.addcmul_(gradient, on_gradient_C.view(shape))
        on_weights = (None, None) if weight_C is None else (product_C, sum_C)
        return grad_x.to(kind), *on_weights, None, None, None, None


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in {torch.bfloat16, torch.float16} else x
