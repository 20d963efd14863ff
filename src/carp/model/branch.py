"""One branch: encoder, projector and assigner. The student and the teacher are branches.

Shapes: B images, D embedding.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carp.config import ModelSettings
from carp.model.assigner import Assigner
from carp.model.batch_norm import keep_statistics
from carp.model.encoder import build_encoder, num_features
from carp.model.projector import Projector


class Branch(nn.Module):
    """f, g and q with one set of weights. With `shard_seeds`, it holds only that many shards of the prototypes."""

    def __init__(self, config: ModelSettings, *, shard_seeds: Sequence[int] = ()) -> None:
        super().__init__()
        self.encoder = build_encoder(config)
        if config.encoder_statistics == "kept":
            keep_statistics(self.encoder)
        self.projector = Projector(
            num_features(self.encoder),
            config.projector_hidden,
            config.embedding,
            init=config.projector_init,
            embedding_scale=config.embedding_scale,
        )
        held = config.num_prototypes * len(shard_seeds) // config.shards if shard_seeds else config.num_prototypes
        self.assigner = Assigner(held, config.embedding, seeds=shard_seeds)
        self.embedding_length = config.embedding_length
        self.joint = config.batch_norm_views == "joint"

    def forward(self, images: Tensor) -> Tensor:
        """Embed one view of every image: [B, 3, H, W] to [B, D] in float32."""
        return self.project(self.encoder(images))

    def embed(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Embed several views of every image.

        They pass one at a time, so that batch norm normalises each view by its own statistics. If `joint`, views of
        one size pass through the encoder together, and all views through the projector.
        """
        if not self.joint:
            return [self(view) for view in views]
        by_size = [list(group) for _, group in groupby(views, key=lambda view: view.shape[-2:])]
        features = torch.cat([self.encoder(torch.cat(group)) for group in by_size])
        return list(self.project(features).view(len(views), len(views[0]), -1).unbind())

    def project(self, features: Tensor) -> Tensor:
        """Embed pooled features of the encoder, [B, D] in float32."""
        z = cast(Tensor, self.projector(features)).float()
        return z if self.embedding_length is None else self.embedding_length * F.normalize(z, dim=-1)
