"""The projector g: pooled features to embeddings."""

from typing import cast

import torch
from torch import Tensor, nn


class Projector(nn.Module):
    """Linear–BN–GELU, Linear–BN–GELU, Linear.

    `embedding_scale` multiplies the last layer at the start only; it is free to change afterwards. While all
    assignments are uniform the gradient of the consistency is nearly zero, so small data start faster when softmax
    already prefers something (docs/decisions/0005).
    """

    def __init__(self, features: int, hidden: int, embedding: int, *, embedding_scale: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, embedding),
        )
        with torch.no_grad():
            last = cast(nn.Linear, self.layers[-1])
            last.weight.mul_(embedding_scale)
            last.bias.mul_(embedding_scale)

    def forward(self, features_BF: Tensor) -> Tensor:
        """Embed features [B, F] as [B, D]."""
        return cast(Tensor, self.layers(features_BF))
