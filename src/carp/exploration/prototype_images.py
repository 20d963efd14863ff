"""Prototypes and the images around them: the most and the least used, twins, and images that no prototype wants.

Shapes: M images, D embedding, K prototypes, n nearest images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.encoders.assignments import preferred_shares
from carp.encoders.frozen_encoder import Encoder
from carp.features.extract import Features
from carp.model.branch import Branch
from carp.similarity.vectors import unit_length

TWIN_COSINE = 0.99  # as in the diagnosis of a run
_PROTOTYPES_AT_A_TIME = _EMBEDDED_AT_A_TIME = 4096


@dataclass(frozen=True)
class PrototypeImages:
    """How prototypes and images belong together; cosines are between embeddings and prototypes."""

    shares: NDArray[np.float64]
    """Share of images that prefer the prototype in its block, [K]; 1 / N is even use."""
    nearest: NDArray[np.int64]
    """Rows of the nearest images of every prototype, [K, n], nearest first."""
    cosines: Features
    """Of these images, [K, n]."""
    own: NDArray[np.int64]
    """The nearest prototype of every image, [M]."""
    certainty: Features
    """How clearly it is the nearest, [M]: see `margin`."""
    closeness: Features
    """Cosine of every image with its nearest prototype, [M]."""
    twins: list[tuple[int, int, float]]
    """Pairs of prototypes that point the same way most, with their cosine, the closest pair first."""

    def most_used(self, count: int) -> list[int]:
        """The prototypes that most images prefer."""
        return list(map(int, np.argsort(-self.shares, kind="stable")[:count]))

    def least_used(self, count: int) -> list[int]:
        """The prototypes that fewest images prefer, those furthest from any image first."""
        return list(map(int, np.lexsort((self.cosines[:, 0], self.shares))[:count]))

    def outliers(self, count: int) -> list[int]:
        """The images that are furthest from every prototype."""
        return list(map(int, np.argsort(self.closeness, kind="stable")[:count]))


def prototype_images(
    embeddings_MD: Features, prototypes_KD: Features, partitions: Sequence[Tensor], *, count: int = 8, twins: int = 6
) -> PrototypeImages:
    """Find the images of every prototype, and the prototype of every image.

    Args:
        embeddings_MD: Embeddings of images.
        prototypes_KD: Prototypes of the same branch.
        partitions: Partitions in which images choose prototypes.
        count: Nearest images of every prototype.
        twins: Pairs of prototypes.
    """
    x_MD, c_KD = (torch.from_numpy(unit_length(part)) for part in (embeddings_MD, prototypes_KD))
    count = min(count, len(x_MD))
    rows, cosines = list[Tensor](), list[Tensor]()
    best_M2 = torch.full((len(x_MD), 2), -2.0)
    own_M = torch.zeros(len(x_MD), dtype=torch.int64)
    pairs: list[tuple[int, int, float]] = []
    for first in range(0, len(c_KD), _PROTOTYPES_AT_A_TIME):
        some_kD = c_KD[first : first + _PROTOTYPES_AT_A_TIME]
        cosine_Mk = x_MD @ some_kD.T
        found = cosine_Mk.topk(count, dim=0)
        rows.append(found.indices.T)
        cosines.append(found.values.T)
        top = cosine_Mk.topk(min(2, cosine_Mk.shape[1]), dim=1)
        own_M = torch.where(top.values[:, 0] > best_M2[:, 0], first + top.indices[:, 0], own_M)
        best_M2 = torch.cat([best_M2, top.values], dim=1).topk(2, dim=1).values
        pairs += _closest(some_kD, c_KD, first, twins)
    return PrototypeImages(
        shares=preferred_shares(np.ascontiguousarray(embeddings_MD), prototypes_KD, partitions),
        nearest=torch.cat(rows).numpy(),
        cosines=torch.cat(cosines).numpy(),
        own=own_M.numpy(),
        certainty=margin(best_M2[:, 0].numpy(), best_M2[:, 1].numpy()),
        closeness=best_M2[:, 0].numpy(),
        twins=sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:twins],
    )


@torch.inference_mode()
def embeddings_of(encoder: Encoder, features: Features) -> Features:
    """The embeddings [M, D] of features [M, F]: the projector takes what the encoder pooled.

    Args:
        encoder: Loaded with the layer `projector`.
        features: Of the layer `encoder`, by the same branch of the same run.
    """
    module = encoder.module
    assert isinstance(module, Branch)
    parts = torch.split(torch.from_numpy(features), _EMBEDDED_AT_A_TIME)
    return torch.cat([module.project(part.to(encoder.device)).cpu() for part in parts]).numpy()


def margin(best: Features, second: Features) -> Features:
    """How clear a choice is, from the cosines with the best and the second best of all centres.

    1 − (1 − best) / (1 − second): 1 at a centre, 0 in the middle between two. It is the silhouette of the image with
    the distances to centres in place of mean distances to images.
    """
    distance, other = 1 - best, 1 - second
    clear = 1 - distance / np.maximum(other, np.finfo(np.float32).tiny)
    return np.clip(np.where(other > 0, clear, 0), 0, 1).astype(np.float32)


def _closest(some_kD: Tensor, c_KD: Tensor, first: int, count: int) -> list[tuple[int, int, float]]:
    """The closest pairs of a part of the prototypes with those that come later."""
    cosine_kK = some_kD @ c_KD.T
    cosine_kK = cosine_kK.masked_fill(torch.arange(len(c_KD)) <= first + torch.arange(len(some_kD))[:, None], -2.0)
    found = cosine_kK.flatten().topk(min(count, cosine_kK.numel()))
    pairs = ((int(place) // len(c_KD), int(place) % len(c_KD)) for place in found.indices)
    return [(first + a, b, float(s)) for (a, b), s in zip(pairs, found.values, strict=True) if s > -2]
