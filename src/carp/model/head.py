"""The prototype head: loss and gradients in one pass over the partition, a few blocks at a time.

No tensor of size images × prototypes is ever allocated. For each chunk of blocks the pass computes logits, assignments,
both loss terms and both gradients, and then discards the intermediate values. This works because the uniformity
gradient of a block needs only the assignments of that block. The backward pass only scales the gradients.

Let s and t be the assignments of a student view and a teacher view, a and b their logits, and d = ⟨s, t⟩. With respect
to a, the gradient of −log d is s − r with r = s·t/d, and that of log N − H(p̄) is, up to its weight, s·(g − ⟨s, g⟩) with
g = log p̄. Both have the factor s, so the gradient is s times one sum. Where d underflows, r = softmax(a + b) and
log d = lse(a + b) − lse(a) − lse(b) are computed from the logits instead.

`uniformity: collision` has another second term. Let a_i be the mean assignment of image i over its views in both
branches, and A their sum. The mean of ⟨a_i, a_j⟩ over pairs of different images is U = (⟨A, A⟩ − Σ ⟨a_i, a_i⟩) /
(B² − B), the term is log(N·U), and its g for image i is 2 (A − a_i) / ((B − 1) U). An image does not repel itself, so U
has no bias in small batches, whereas H(p̄) of few certain assignments is always too low.

Shapes: V student views, G teacher views, B images, D embedding, K prototypes, P blocks, p blocks in a chunk, N
prototypes in a block, E pairs of views. A block of one prototype has two outcomes, the prototype and an implicit zero
logit, so its N is 2.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

# Logits of all views in a chunk. On a CPU there are few enough to stay in the cache between operations; elsewhere there
# are enough to make the cost of kernel launches negligible.
_CHUNK_ELEMENTS = {"cpu": 2**21, "other": 2**25}
_UNDERFLOW = {torch.float32: 1e-30, torch.float64: 1e-290}  # below this, ⟨s, t⟩ may have lost precision

LEAST_COLLISION = 1e-6  # relative to that of uniform assignments; below it, images are far enough apart

Uniformity = Literal["entropy", "collision"]
Pairs = Literal["sum", "mean"]
PAIR_FACTOR: dict[Pairs, int] = {"sum": 2, "mean": 1}  # of the mean over ordered pairs of views


class GlobalBatch(NamedTuple):
    """The batch of all processes that share it: means are taken over all its images and blocks."""

    images: int
    blocks: int
    all_reduce_sum: Callable[[Tensor], None]
    """Replaces sums over this process's images by those over all images, in place."""


def fused_loss(
    z_VBD: Tensor,
    w_GBD: Tensor,
    prototypes_KD: Tensor,
    teacher_KD: Tensor,
    partition_PN: Tensor,
    *,
    entropy_weight: float,
    pairs: Pairs = "sum",
    uniformity: Uniformity = "entropy",
    chunk: int | None = None,
    global_batch: GlobalBatch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return total, consistency and kl_to_uniform; a gradient flows from total to z and to the prototypes.

    Args:
        z_VBD: Student embeddings.
        w_GBD: Teacher embeddings of the first G views.
        prototypes_KD: Student prototypes, used as given.
        teacher_KD: Teacher prototypes, used as given.
        partition_PN: Prototype indices, one row per block.
        entropy_weight: Weight of the uniformity term in total.
        pairs: Whether the consistency of two views is the sum of both directions or their mean.
        uniformity: Whether that term is kl_to_uniform or the collision of different images.
        chunk: Blocks at a time; by default chosen from the batch size and the block size.
        global_batch: The whole batch, if this process has only some of its images or blocks. The results are then this
            process's contributions to the consistency, to kl_to_uniform and to the gradient.
    """
    wide = (x if x.dtype in _UNDERFLOW else x.float() for x in (z_VBD, prototypes_KD, w_GBD, teacher_KD))
    total, consistency, kl = _FusedLoss.apply(
        *wide, partition_PN, entropy_weight, pairs, uniformity, chunk, global_batch
    )
    return total, consistency, kl


def blocks_per_chunk(views: int, batch: int, block_size: int, device: str = "cpu") -> int:
    """Return how many blocks to compute at a time: one, or more if batch and blocks are small."""
    return max(1, _CHUNK_ELEMENTS.get(device, _CHUNK_ELEMENTS["other"]) // (views * batch * block_size))


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z_VBD: Tensor,
        prototypes_KD: Tensor,
        w_GBD: Tensor,
        teacher_KD: Tensor,
        partition_PN: Tensor,
        entropy_weight: float,
        pairs: Pairs,
        uniformity: Uniformity,
        chunk: int | None,
        global_batch: GlobalBatch | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tensors = z_VBD, prototypes_KD, w_GBD, teacher_KD, partition_PN
        ctx.save_for_backward(*tensors)
        ctx.settings = entropy_weight, pairs, uniformity, chunk, global_batch, *ctx.needs_input_grad[:2]
        block_pass = _BlockPass(*tensors, *ctx.settings)
        ctx.gradients = block_pass.grad_z, block_pass.grad_prototypes
        consistency, kl, uniform = block_pass.terms()
        ctx.mark_non_differentiable(consistency, kl)
        return consistency + entropy_weight * uniform, consistency, kl

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients are as large as the prototypes, so they are handed over, not copied. Only a second backward pass
        # over the same graph (retain_graph) computes them again.
        if ctx.gradients is None:
            block_pass = _BlockPass(*ctx.saved_tensors, *ctx.settings)
            ctx.gradients = block_pass.grad_z, block_pass.grad_prototypes
        gradients, ctx.gradients = ctx.gradients, None
        return (*(None if g is None else g.mul_(grad_total) for g in gradients), *[None] * 8)


class _Buffers:
    """Memory that is allocated once per pass; the first request for a name must be the largest."""

    def __init__(self, like: Tensor) -> None:
        self._like, self._flat = like, dict[str, Tensor]()

    def take(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self._flat:
            self._flat[name] = self._like.new_empty(size)
        return self._flat[name][:size].view(shape)


class _BlockPass:
    """Accumulates loss terms and gradients chunk by chunk."""

    def __init__(
        self,
        z_VBD: Tensor,
        prototypes_KD: Tensor,
        w_GBD: Tensor,
        teacher_KD: Tensor,
        partition_PN: Tensor,
        entropy_weight: float,
        pairs: Pairs,
        uniformity: Uniformity,
        chunk: int | None,
        global_batch: GlobalBatch | None,
        wants_z: bool,
        wants_prototypes: bool,
    ) -> None:
        (V, B, _), (P, N), G = z_VBD.shape, partition_PN.shape, len(w_GBD)
        self.B, self.N, self.outcomes = B, N, max(2, N)
        self.global_batch = global_batch or GlobalBatch(B, P, lambda _: None)
        images, blocks, _ = self.global_batch
        self.z, self.w = z_VBD.flatten(0, 1), w_GBD.flatten(0, 1)
        self.prototypes_KD, self.teacher_KD = prototypes_KD, teacher_KD
        self.rows = torch.split(partition_PN, chunk or blocks_per_chunk(V + G, B, N, z_VBD.device.type))
        self.pairs = [(u, v) for u in range(V) for v in range(G) if u != v]
        # The weight of one pair of views of an image in a block, and of one assignment in the uniformity term
        self.pair_weight = PAIR_FACTOR[pairs] / (len(self.pairs) * images * blocks)
        self.mean_weight = entropy_weight / ((V + G) * images * blocks)
        self.num_assignments = (V + G) * images  # averaged in the mean of a block
        self.collides = uniformity == "collision"
        self.grad_z = z_VBD.new_empty(z_VBD.shape) if wants_z else None
        self.grad_prototypes = torch.empty_like(prototypes_KD) if wants_prototypes else None
        self.wants_gradient = wants_z or wants_prototypes
        self.buffers = _Buffers(z_VBD)
        with torch.no_grad(), torch.autocast(z_VBD.device.type, enabled=False):
            if self._visit_all(checked=False):
                self._visit_all(checked=True)

    def _visit_all(self, *, checked: bool) -> bool:
        """Process all blocks; return whether ⟨s, t⟩ underflowed somewhere, on any process, and was not noticed.

        Checking every chunk would make the host wait for the device once per chunk. So the first pass checks all of
        them together at its end, and only if something underflowed does a second one check each chunk.
        """
        self.log_agreement, self.kl_of_blocks, self.collision_of_blocks = self.z.new_zeros(3).unbind()
        if self.grad_z is not None:
            self.grad_z.zero_()
        least = [self._visit(rows_pN.flatten(), checked=checked) for rows_pN in self.rows]
        if checked:
            return False
        underflows = (torch.stack(least).min() < _UNDERFLOW[self.z.dtype]).to(self.z.dtype)
        self.global_batch.all_reduce_sum(underflows)
        return float(underflows) > 0

    def terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the consistency, kl_to_uniform and the uniformity term of all blocks of this process."""
        kl, collision = (sums / self.global_batch.blocks for sums in (self.kl_of_blocks, self.collision_of_blocks))
        return -self.pair_weight * self.log_agreement, kl, collision if self.collides else kl

    def _visit(self, indices: Tensor, *, checked: bool) -> Tensor:
        """Process the blocks whose prototypes are `indices`; return the smallest ⟨s, t⟩."""
        own_cD = self._gather("own", self.prototypes_KD, indices)
        their_cD = self._gather("their", self.teacher_KD, indices)
        s_VBpN, t_GBpN = self._assign("s", self.z, own_cD), self._assign("t", self.w, their_cD)
        mean_pN = s_VBpN.sum(dim=(0, 1)) + t_GBpN.sum(dim=(0, 1))
        self.global_batch.all_reduce_sum(mean_pN)
        mean_pN.div_(self.num_assignments)
        g_pN = mean_pN.clamp_min(torch.finfo(mean_pN.dtype).tiny).log_()
        self.kl_of_blocks += (mean_pN * (g_pN + math.log(self.outcomes))).sum()
        g = self._collide(s_VBpN, t_GBpN, mean_pN) if self.collides else g_pN

        d_EBp1 = torch.stack([self._inner(s_VBpN[u], t_GBpN[v]) for u, v in self.pairs])
        least = d_EBp1.min()
        log_space = checked and float(least) < _UNDERFLOW[d_EBp1.dtype]
        if not log_space:
            self.log_agreement += d_EBp1.log().sum()
        if self.wants_gradient:
            self._to_gradient(s_VBpN, None if log_space else t_GBpN, d_EBp1, g.mul_(self.mean_weight))
        if log_space:
            self._agree_in_log_space(s_VBpN, self._logits(self.z, own_cD), self._logits(self.w, their_cD))
        if self.wants_gradient:
            grad_a = s_VBpN[..., : self.N].reshape(len(self.z), -1)  # s was replaced by the gradient, in place
            if self.grad_z is not None:
                self.grad_z.view_as(self.z).addmm_(grad_a, own_cD)
            if self.grad_prototypes is not None:
                self.grad_prototypes.index_copy_(0, indices, torch.mm(grad_a.T, self.z, out=own_cD))
        return least

    def _collide(self, s_VBpN: Tensor, t_GBpN: Tensor, mean_pN: Tensor) -> Tensor:
        """Add the logarithm of N·U of every block, and return g [B, p, N], the gradient with respect to assignments."""
        images, views = self.global_batch.images, len(s_VBpN) + len(t_GBpN)
        own_BpN = torch.sum(s_VBpN, dim=0, out=self.buffers.take("own image", *s_VBpN.shape[1:]))
        for t_BpN in t_GBpN:
            own_BpN.add_(t_BpN)
        own_BpN.div_(views)
        if images < 2:  # there are no pairs
            return own_BpN.zero_()
        squares_p = self._inner(own_BpN, own_BpN).sum(dim=(0, 2))
        self.global_batch.all_reduce_sum(squares_p)
        sums_pN = mean_pN * images
        collision_p = (sums_pN.square().sum(dim=-1) - squares_p) / (images * (images - 1))
        relative_p = self.outcomes * collision_p
        self.collision_of_blocks += relative_p.clamp_min(LEAST_COLLISION).log().sum()
        factor_p = torch.where(relative_p > LEAST_COLLISION, 2 / ((images - 1) * collision_p), 0)
        return torch.sub(sums_pN, own_BpN, out=own_BpN).mul_(factor_p[:, None])

    def _to_gradient(self, s_VBpN: Tensor, t_GBpN: Tensor | None, d_EBp1: Tensor, uniform: Tensor) -> None:
        """Replace s by the gradient with respect to the student's logits, s · (κ(pairs − Σ t/d) + u − ⟨s, u⟩).

        Here κ is `pair_weight`, and u, [p, N] or [B, p, N], is g times `mean_weight`. Without t the terms −κ·s·t/d are
        left out.
        """
        share_EBp1 = d_EBp1.reciprocal_().mul_(-self.pair_weight)
        for u, s_BpN in enumerate(s_VBpN):
            own_pairs = [(e, v) for e, (first, v) in enumerate(self.pairs) if first == u]
            offset_Bp1 = self._inner(s_BpN, uniform).neg_().add_(len(own_pairs) * self.pair_weight)
            factor_BpN = self.buffers.take("factor", *s_BpN.shape)
            torch.add(uniform, offset_Bp1, out=factor_BpN)
            if t_GBpN is not None:
                for e, v in own_pairs:
                    factor_BpN.addcmul_(t_GBpN[v], share_EBp1[e])
            s_BpN.mul_(factor_BpN)

    def _agree_in_log_space(self, grad_VBpN: Tensor, a_VBpN: Tensor, b_GBpN: Tensor) -> None:
        """Add log⟨s, t⟩ = lse(a + b) − lse(a) − lse(b) to the loss and −κ softmax(a + b) to the gradient."""
        for u, v in self.pairs:
            both_BpN = a_VBpN[u] + b_GBpN[v]
            self.log_agreement += (both_BpN.logsumexp(-1) - a_VBpN[u].logsumexp(-1) - b_GBpN[v].logsumexp(-1)).sum()
            if self.wants_gradient:
                grad_VBpN[u].sub_(both_BpN.softmax(dim=-1), alpha=self.pair_weight)

    def _gather(self, name: str, prototypes_KD: Tensor, indices: Tensor) -> Tensor:
        out_cD = self.buffers.take(name, len(indices), prototypes_KD.shape[1])
        return torch.index_select(prototypes_KD, 0, indices, out=out_cD)

    def _assign(self, name: str, x_MD: Tensor, prototypes_cD: Tensor) -> Tensor:
        """Return the assignments [views, B, p, N]."""
        logits = self._logits(x_MD, prototypes_cD, out=self.buffers.take("logits", len(x_MD), len(prototypes_cD)))
        return torch.softmax(logits, dim=-1, out=self.buffers.take(name, *logits.shape))

    def _logits(self, x_MD: Tensor, prototypes_cD: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits [views, B, p, N]; a block of one prototype gets its implicit zero logit."""
        blocks = torch.mm(x_MD, prototypes_cD.T, out=out).view(-1, self.B, len(prototypes_cD) // self.N, self.N)
        return torch.cat([blocks, torch.zeros_like(blocks)], dim=-1) if self.N == 1 else blocks

    def _inner(self, x_BpN: Tensor, y_BpN: Tensor) -> Tensor:
        """⟨x, y⟩ of every block, [B, p, 1]."""
        product_BpN = torch.mul(x_BpN, y_BpN, out=self.buffers.take("factor", *x_BpN.shape))
        return product_BpN.sum(dim=-1, keepdim=True)
