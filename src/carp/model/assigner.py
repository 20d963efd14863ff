"""The assigner q: learnable prototypes of unit length."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Assigner(nn.Module):
    """K prototypes whose direction is learned and whose length is fixed at 1; no bias, no temperature."""

    def __init__(self, num_prototypes: int, embedding: int) -> None:
        super().__init__()
        self.directions_KD = nn.Parameter(torch.empty(num_prototypes, embedding))
        nn.init.trunc_normal_(self.directions_KD, std=embedding**-0.5)

    def forward(self) -> Tensor:
        """Return the prototypes [K, D], each of unit norm."""
        return F.normalize(self.directions_KD.float(), dim=-1)
