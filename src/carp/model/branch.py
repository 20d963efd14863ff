"""One branch: encoder, projector and assigner. The student and the teacher are branches.

Shapes: B images, F features, D embedding.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from carp.config import ModelSettings
from carp.model.assigner import Assigner
from carp.model.encoder import build_encoder, num_features
from carp.model.projector import Projector


class Branch(nn.Module):
    """f, g and q with one set of weights. With `shard_seeds`, it holds only that many shards of the prototypes."""

    def __init__(self, config: ModelSettings, *, shard_seeds: Sequence[int] = ()) -> None:
        super().__init__()
        self.encoder = build_encoder(config)
        self.projector = Projector(
            num_features(self.encoder),
            config.projector_hidden,
            config.embedding,
            embedding_scale=config.embedding_scale,
        )
        held = config.num_prototypes * len(shard_seeds) // config.shards if shard_seeds else config.num_prototypes
        self.assigner = Assigner(held, config.embedding, seeds=shard_seeds)
        self.embedding_length = config.embedding_length

    def forward(self, images: Tensor) -> Tensor:
        """Embed one view of every image: [B, 3, H, W] to [B, D] in float32."""
        z_BD = cast(Tensor, self.projector(self.encoder(images))).float()
        return z_BD if self.embedding_length is None else self.embedding_length * F.normalize(z_BD, dim=-1)
