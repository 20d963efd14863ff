"""The assigner q: learnable prototypes of unit length."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        return F.normalize(self.directions_KD.float(), dim=-1)
