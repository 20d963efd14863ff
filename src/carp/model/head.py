"""The prototype head in one walk over the partition: loss and gradients, a few blocks at a time.

Nothing of size images × prototypes is ever held. For a chunk of blocks the walk forms logits, assignments, both loss
terms and both gradients, then forgets them: the uniformity gradient of a block needs the mean assignment of that block
only, so a block is finished when it is left, and the backward pass only scales what the walk brought back.

With s, t the assignments of a student and a teacher view and d = ⟨s, t⟩, the gradient of −log d on the student's
logits is s − r with r = s·t/d; that of log N − H(p̄) is, up to its weight, s·(g − ⟨s, g⟩) with g = log p̄. Both share
the factor s, so the gradient on the logits is s times one sum. Where d underflows, r = softmax(a + b) and log d =
lse(a + b) − lse(a) − lse(b) are formed from the logits instead.

Shapes: V student views, G teacher views, B images, D embedding, K prototypes, P blocks, p blocks in a chunk, N
prototypes in a block. A block of one prototype has two outcomes, itself and an implicit zero logit: N is 2 there.
"""

import math
from typing import Any

import torch
from torch import Tensor

# Logits of all views of a chunk: on a CPU so few that they stay in the cache from pass to pass, elsewhere so many that
# starting the kernels costs nothing.
_CHUNK_ELEMENTS = {"cpu": 2**21, "other": 2**25}
_UNDERFLOW = {torch.float32: 1e-30, torch.float64: 1e-290}  # below this, ⟨s, t⟩ may have lost digits


def fused_loss(
    z_VBD: Tensor,
    w_GBD: Tensor,
    prototypes_KD: Tensor,
    teacher_KD: Tensor,
    partition_PN: Tensor,
    *,
    entropy_weight: float,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return total, consistency and kl_to_uniform; a gradient flows from total to z and to the prototypes.

    Args:
        z_VBD: Student embeddings.
        w_GBD: Teacher embeddings of the first G views.
        prototypes_KD: Student prototypes, used as given.
        teacher_KD: Teacher prototypes, used as given.
        partition_PN: Prototype indices, a row a block.
        entropy_weight: Weight of kl_to_uniform in total.
        chunk: Blocks at a time; chosen from the batch and the block size when None.
    """
    wide = (x if x.dtype in _UNDERFLOW else x.float() for x in (z_VBD, prototypes_KD, w_GBD, teacher_KD))
    total, consistency, kl = _FusedLoss.apply(*wide, partition_PN, entropy_weight, chunk)
    return total, consistency, kl


def blocks_per_chunk(views: int, batch: int, block_size: int, device: str = "cpu") -> int:
    """How many blocks to take at a time: one, unless batch and blocks are so small that more go well together."""
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
        chunk: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        walk = _Walk(z_VBD, w_GBD, prototypes_KD, entropy_weight, partition_PN, *ctx.needs_input_grad[:2])
        if chunk is None:
            views, device = len(z_VBD) + len(w_GBD), z_VBD.device.type
            chunk = blocks_per_chunk(views, z_VBD.shape[1], partition_PN.shape[1], device)
        with torch.autocast(z_VBD.device.type, enabled=False):
            for rows_pN in torch.split(partition_PN, chunk):
                walk.visit(rows_pN.flatten(), teacher_KD)
        ctx.save_for_backward(walk.grad_z, walk.grad_prototypes)
        consistency, kl = walk.terms()
        ctx.mark_non_differentiable(consistency, kl)
        return consistency + entropy_weight * kl, consistency, kl

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = (None if grad is None else grad * grad_total for grad in ctx.saved_tensors)
        return (*grads, None, None, None, None, None)


class _Walk:
    """Collects loss terms and gradients chunk by chunk."""

    def __init__(
        self,
        z_VBD: Tensor,
        w_GBD: Tensor,
        prototypes_KD: Tensor,
        entropy_weight: float,
        partition_PN: Tensor,
        wants_z: bool,
        wants_prototypes: bool,
    ) -> None:
        (V, B, _), (P, N), G = z_VBD.shape, partition_PN.shape, len(w_GBD)
        self.B, self.P, self.N = B, P, N
        self.pairs = [(u, v) for u in range(V) for v in range(G) if u != v]
        self.z, self.w, self.prototypes_KD = z_VBD.flatten(0, 1), w_GBD.flatten(0, 1), prototypes_KD
        self.pair_weight = 2 / (len(self.pairs) * B * P)  # of one pair of views of one image in one block
        self.mean_weight = entropy_weight / ((V + G) * B * P)  # of one assignment in the uniformity term
        self.grad_z = torch.zeros_like(z_VBD) if wants_z else None
        self.grad_prototypes = torch.empty_like(prototypes_KD) if wants_prototypes else None
        self.wants_gradient = wants_z or wants_prototypes
        self.log_agreement = z_VBD.new_zeros(())
        self.kl_of_blocks = z_VBD.new_zeros(())
        self.log_outcomes = math.log(max(2, N))

    def visit(self, indices: Tensor, teacher_KD: Tensor) -> None:
        """Walk over the blocks whose prototypes are `indices`."""
        own_cD, their_cD = self.prototypes_KD.index_select(0, indices), teacher_KD.index_select(0, indices)
        s_VBpN = self._logits(self.z, own_cD).softmax(dim=-1)
        t_GBpN = self._logits(self.w, their_cD).softmax(dim=-1)
        mean_pN = (s_VBpN.sum(dim=(0, 1)) + t_GBpN.sum(dim=(0, 1))).div_(len(self.z) + len(self.w))
        g_pN = mean_pN.clamp_min(torch.finfo(mean_pN.dtype).tiny).log_()
        self.kl_of_blocks += (mean_pN * (g_pN + self.log_outcomes)).sum()

        d_EBp1 = torch.stack([torch.linalg.vecdot(s_VBpN[u], t_GBpN[v]) for u, v in self.pairs]).unsqueeze(-1)
        log_space = float(d_EBp1.min()) < _UNDERFLOW[d_EBp1.dtype]
        if not log_space:
            self.log_agreement += d_EBp1.log().sum()
        if self.wants_gradient:
            self._to_gradient(s_VBpN, None if log_space else t_GBpN, d_EBp1, g_pN)
        if log_space:
            self._agree_in_log_space(s_VBpN, self._logits(self.z, own_cD), self._logits(self.w, their_cD))
        if self.wants_gradient:
            grad_a = s_VBpN[..., : self.N].reshape(len(self.z), -1)  # s was replaced by the gradient, in place
            if self.grad_z is not None:
                self.grad_z.view_as(self.z).addmm_(grad_a, own_cD)
            if self.grad_prototypes is not None:
                self.grad_prototypes.index_copy_(0, indices, grad_a.T @ self.z)

    def _to_gradient(self, s_VBpN: Tensor, t_GBpN: Tensor | None, d_EBp1: Tensor, g_pN: Tensor) -> None:
        """Turn s into the gradient on the student's logits, s · (κ(pairs − Σ t/d) + λ(g − ⟨s, g⟩)), in place.

        Without t the terms −κ·s·t/d are left out.
        """
        uniform_pN = self.mean_weight * g_pN
        share_EBp1 = d_EBp1.reciprocal_().mul_(-self.pair_weight)
        for u, s_BpN in enumerate(s_VBpN):
            own_pairs = [(e, v) for e, (first, v) in enumerate(self.pairs) if first == u]
            offset_Bp1 = torch.linalg.vecdot(s_BpN, uniform_pN).unsqueeze(-1).neg_()
            offset_Bp1 += len(own_pairs) * self.pair_weight
            factor = uniform_pN
            if t_GBpN is not None:
                for e, v in own_pairs:
                    factor = torch.addcmul(factor, t_GBpN[v], share_EBp1[e])
            s_BpN.mul_(factor + offset_Bp1)

    def _agree_in_log_space(self, grad_VBpN: Tensor, a_VBpN: Tensor, b_GBpN: Tensor) -> None:
        """Add log⟨s, t⟩ = lse(a + b) − lse(a) − lse(b), and bring −κr with r = softmax(a + b) into the gradient."""
        for u, v in self.pairs:
            both_BpN = a_VBpN[u] + b_GBpN[v]
            self.log_agreement += (both_BpN.logsumexp(-1) - a_VBpN[u].logsumexp(-1) - b_GBpN[v].logsumexp(-1)).sum()
            if self.wants_gradient:
                grad_VBpN[u].sub_(both_BpN.softmax(dim=-1), alpha=self.pair_weight)

    def _logits(self, x_MD: Tensor, prototypes_cD: Tensor) -> Tensor:
        """[views, B, p, N]; a block of one prototype gets its implicit zero logit."""
        blocks = (x_MD @ prototypes_cD.T).view(-1, self.B, len(prototypes_cD) // self.N, self.N)
        return torch.cat([blocks, torch.zeros_like(blocks)], dim=-1) if self.N == 1 else blocks

    def terms(self) -> tuple[Tensor, Tensor]:
        """Consistency and kl_to_uniform of the whole partition."""
        return -self.pair_weight * self.log_agreement, self.kl_of_blocks / self.P
