"""The loss of a batch that several processes share: its value on all of them, its gradient in parts that add up.

Every process has some of the images and walks over all blocks. The mean assignment of a block is summed over processes
while the block is visited, in chunks of the same size everywhere: K numbers per step in all. Consistency is a sum over
own images, divided by the number of all. So the gradient on own embeddings is that of the whole batch, and the
gradients of weights and prototypes must be added up over processes, not averaged.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

from typing import Any, cast

import torch
from torch import Tensor

from carp.compute import distributed
from carp.model.carp import Embedded
from carp.model.head import GlobalBatch, blocks_per_chunk
from carp.model.loss import LossTerms, carp_loss


def shared_loss(embedded: Embedded, partition_PN: Tensor, *, images: int, entropy_weight: float) -> LossTerms:
    """Loss of `images` images of which this process has embedded its own; for one process it is `carp_loss`."""
    if distributed.world_size() == 1:
        return carp_loss(*embedded, partition_PN, entropy_weight=entropy_weight)
    whole = GlobalBatch(images, len(partition_PN), lambda sums: distributed.all_reduce_sum([sums]))
    chunk = _common_chunk(embedded, partition_PN, images)
    own = carp_loss(*embedded, partition_PN, entropy_weight=entropy_weight, chunk=chunk, whole=whole)
    consistency = own.consistency.clone()
    distributed.all_reduce_sum([consistency])
    return LossTerms(own.total + (consistency - own.consistency), consistency, own.kl_to_uniform)


def _common_chunk(embedded: Embedded, partition_PN: Tensor, images: int) -> int:
    """Blocks per chunk, the same number in every process: they add up the sums of a chunk together.

    It suits the largest share. Shares differ by at most one image, whether of a batch or of a micro-batch, so the
    largest is known without asking the other processes.
    """
    views, device = len(embedded.z) + len(embedded.w), embedded.z[0].device.type
    return blocks_per_chunk(views, distributed.largest_share(images), partition_PN.shape[1], device)


def sharded_loss(embedded: Embedded, partition_PN: Tensor, *, images: int, entropy_weight: float) -> LossTerms:
    """The same where every process has the prototypes of its own blocks: embeddings travel instead of gradients.

    All embeddings are gathered, every process walks over its own blocks, and what all blocks say about an embedding is
    added up where that embedding came from. The mean assignment of a block needs no other process.
    """
    if distributed.world_size() == 1:
        return carp_loss(*embedded, partition_PN, entropy_weight=entropy_weight)
    z_BVD = cast(Tensor, _JoinImages.apply(torch.stack(embedded.z, dim=1)))
    w_BGD = distributed.all_gather_rows(torch.stack(embedded.w, dim=1))
    whole = GlobalBatch(images, len(partition_PN) * distributed.world_size(), lambda _: None)
    own = carp_loss(
        z_BVD.transpose(0, 1),
        w_BGD.transpose(0, 1),
        embedded.prototypes_KD,
        embedded.teacher_prototypes_KD,
        partition_PN,
        entropy_weight=entropy_weight,
        whole=whole,
    )
    all_terms = torch.stack(own).detach().clone()
    distributed.all_reduce_sum([all_terms])
    total, consistency, kl = all_terms
    return LossTerms(own.total + (total - own.total.detach()), consistency, kl)


class _JoinImages(torch.autograd.Function):
    """The rows of all processes; the gradient of a row is the sum of what all of them say about it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.own = len(rows)
        return distributed.all_gather_rows(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return distributed.reduce_scatter_rows(gradient.contiguous(), ctx.own)
