"""The loss of a batch that several processes share: every process gets its value and its own part of the gradient.

Every process has some of the images and computes all blocks. The assignments of a block are summed over processes while
the block is computed, in chunks of the same size on all processes: K numbers per step in total. The consistency term is
a sum over the process's own images, divided by the number of all images. The gradient with respect to the process's own
embeddings is therefore that of the whole batch, and the gradients of weights and prototypes must be added over
processes, not averaged. The KoLeo term compares all images with each other, so every process gathers all embeddings of
the global views and computes it as a whole.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

from collections.abc import Sequence
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from carp.compute import distributed
from carp.model.carp import Embedded
from carp.model.head import GlobalBatch, blocks_per_chunk
from carp.model.koleo import LEAST_DISTANCE
from carp.model.loss import LossOptions, LossTerms, carp_loss, with_koleo


def shared_loss(embedded: Embedded, partition_PN: Tensor, *, images: int, **options: Unpack[LossOptions]) -> LossTerms:
    """Compute the loss of `images` images, of which this process has embedded its share; see `carp_loss`."""
    if distributed.world_size() == 1:
        return carp_loss(*embedded, partition_PN, **options)
    weight, distance = options.pop("koleo_weight", 0.0), options.pop("koleo_distance", LEAST_DISTANCE)
    global_batch = GlobalBatch(images, len(partition_PN), lambda sums: distributed.all_reduce_sum([sums]))
    chunk = _common_chunk(embedded, partition_PN, images)
    own = carp_loss(*embedded, partition_PN, **options, chunk=chunk, global_batch=global_batch)
    consistency = own.consistency.clone()
    distributed.all_reduce_sum([consistency])
    whole = LossTerms(own.total + (consistency - own.consistency), consistency, own.kl_to_uniform)
    if not weight:
        return whole
    return with_koleo(whole, weight, distance, _join_images(embedded.z[:2]), copies=distributed.world_size())


def _common_chunk(embedded: Embedded, partition_PN: Tensor, images: int) -> int:
    """Return the number of blocks per chunk, the same on every process: they reduce the sums of a chunk together.

    It suits the largest share. Shares of a batch or micro-batch differ by at most one image, so every process knows the
    largest share without communication.
    """
    views, device = len(embedded.z) + len(embedded.w), embedded.z[0].device.type
    return blocks_per_chunk(views, distributed.largest_share(images), partition_PN.shape[1], device)


def sharded_loss(embedded: Embedded, partition_PN: Tensor, *, images: int, **options: Unpack[LossOptions]) -> LossTerms:
    """Compute the same loss if every process holds the prototypes of its own blocks only.

    Embeddings are communicated instead of gradients: every process gathers all embeddings and computes its own blocks,
    and the gradients of an embedding are summed on the process that it came from. The mean assignment of a block needs
    no communication.
    """
    if distributed.world_size() == 1:
        return carp_loss(*embedded, partition_PN, **options)
    weight, distance = options.pop("koleo_weight", 0.0), options.pop("koleo_distance", LEAST_DISTANCE)
    z_VBD = _join_images(embedded.z)
    w_BGD = distributed.all_gather_rows(torch.stack(embedded.w, dim=1))
    global_batch = GlobalBatch(images, len(partition_PN) * distributed.world_size(), lambda _: None)
    own = carp_loss(
        z_VBD,
        w_BGD.transpose(0, 1),
        embedded.prototypes_KD,
        embedded.teacher_prototypes_KD,
        partition_PN,
        **options,
        global_batch=global_batch,
    )
    all_terms = torch.stack(own).detach().clone()
    distributed.all_reduce_sum([all_terms])
    total, consistency, kl = all_terms
    whole = LossTerms(own.total + (total - own.total.detach()), consistency, kl)
    return with_koleo(whole, weight, distance, z_VBD, copies=distributed.world_size())


def _join_images(z: Sequence[Tensor]) -> Tensor:
    """Return the embeddings of all processes' images, [V, B, D]."""
    z_BVD = cast(Tensor, _JoinImages.apply(torch.stack(list(z), dim=1)))
    return z_BVD.transpose(0, 1)


class _JoinImages(torch.autograd.Function):
    """Gathers the rows of all processes; the gradient of a row is the sum of its gradients on all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.own = len(rows)
        return distributed.all_gather_rows(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return distributed.reduce_scatter_rows(gradient.contiguous(), ctx.own)
