"""The assigner q: learnable prototypes of unit length."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_LEAST_LENGTH = 1e-12  # as in `F.normalize`: rows of zeros stay zeros
_CHUNK_ELEMENTS = 2**17  # on a CPU, few enough to stay in the cache between operations


class Assigner(nn.Module):
    """K prototypes whose direction is learned and whose length is fixed at 1; no bias, no temperature.

    `seeds` splits the prototypes into one shard per seed. A shard is drawn from its own seed, so its initial values do
    not depend on the process that holds it.
    """

    def __init__(self, num_prototypes: int, embedding: int, *, seeds: Sequence[int] = ()) -> None:
        super().__init__()
        self.directions_KD = nn.Parameter(torch.empty(num_prototypes, embedding))
        generators: list[torch.Generator | None] = [torch.Generator().manual_seed(seed) for seed in seeds] or [None]
        with torch.no_grad():
            for shard, generator in zip(self.directions_KD.chunk(len(generators)), generators, strict=True):
                nn.init.normal_(shard, std=embedding**-0.5, generator=generator)

    def forward(self) -> Tensor:
        """Return the prototypes [K, D], each of unit norm."""
        return unit_rows(self.directions_KD.float())


def unit_rows(x_KD: Tensor) -> Tensor:
    """Return rows divided by their lengths: `F.normalize`, with a faster backward pass."""
    unit_KD: Tensor = _UnitRows.apply(x_KD)
    return unit_KD


class _UnitRows(torch.autograd.Function):
    """The backward pass allocates only its result.

    With y = x / |x|, the gradient with respect to x is (g − ⟨g, y⟩ y) / |x|. Autograd computes it through seven tensors
    as large as the prototypes. With 65,536 prototypes, that takes almost as long as the head's matrix products.
    """

    @staticmethod
    def forward(ctx: Any, x_KD: Tensor) -> Tensor:
        length_K1: Tensor = torch.linalg.vector_norm(x_KD, dim=-1, keepdim=True).clamp_min_(_LEAST_LENGTH)
        unit_KD = x_KD / length_K1
        ctx.save_for_backward(unit_KD, length_K1)
        return unit_KD

    @staticmethod
    def backward(ctx: Any, grad_KD: Tensor) -> Tensor:
        unit_KD, length_K1 = ctx.saved_tensors
        out_KD = torch.empty_like(grad_KD)
        rows = max(1, _CHUNK_ELEMENTS // max(1, grad_KD.shape[1])) if grad_KD.device.type == "cpu" else len(grad_KD)
        for parts in zip(*(tensor.split(rows) for tensor in (out_KD, grad_KD, unit_KD, length_K1)), strict=True):
            out, grad, unit, length = parts
            inner = torch.mul(grad, unit, out=out).sum(dim=-1, keepdim=True)
            torch.addcmul(grad, unit, inner, value=-1, out=out).div_(length)
        return out_KD
