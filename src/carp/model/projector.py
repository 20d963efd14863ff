"""The projector g, which maps pooled features to embeddings."""

from typing import Literal, cast

import torch
from torch import Tensor, nn


class Projector(nn.Module):
    """Linear–BN–GELU, Linear–BN–GELU, Linear.

    `embedding_scale` multiplies the initial weights of the last layer, which are then trained as any others. While all
    assignments are uniform, the gradient of the consistency term is nearly zero. Training on small data therefore
    starts faster if the first assignments are already uneven (docs/decisions/0005).
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        embedding: int,
        *,
        init: Literal["default", "truncated_normal"] = "default",
        embedding_scale: float = 1.0,
    ) -> None:
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
        if init == "truncated_normal":
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=0.02)  # truncated at ±2, it would be the same
                    nn.init.zeros_(layer.bias)
        with torch.no_grad():
            last = cast(nn.Linear, self.layers[-1])
            last.weight.mul_(embedding_scale)
            last.bias.mul_(embedding_scale)

    def forward(self, features_BF: Tensor) -> Tensor:
        """Map features [B, F] to embeddings [B, D]."""
        return cast(Tensor, self.layers(features_BF))
