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

_CHUNK_ELEMENTS = 2**20  # logits of all views of a chunk: so few that they stay in the cache from pass to pass
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


def blocks_per_chunk(views: int, batch: int, block_size: int) -> int:
    """How many blocks to take at a time: one, unless blocks are so small that more stay in the cache together."""
    return max(1, _CHUNK_ELEMENTS // (views * batch * block_size))


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
        chunk = chunk or blocks_per_chunk(len(z_VBD) + len(w_GBD), z_VBD.shape[1], partition_PN.shape[1])
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
        self.V, self.G, self.B, self.P, self.N = V, G, B, P, N
        self.z, self.w, self.prototypes_KD = z_VBD.flatten(0, 1), w_GBD.flatten(0, 1), prototypes_KD
        self.pair_weight = 2 / (G * (V - 1) * B * P)  # of one pair of views of one image in one block
        self.mean_weight = entropy_weight / ((V + G) * B * P)  # of one assignment in the uniformity term
        self.grad_z = torch.zeros_like(z_VBD) if wants_z else None
        self.grad_prototypes = torch.empty_like(prototypes_KD) if wants_prototypes else None
        self.wants_gradient = wants_z or wants_prototypes
        self.log_agreement = z_VBD.new_zeros(())
        self.kl_of_blocks = z_VBD.new_zeros(())
        self.log_outcomes = math.log(max(2, N))

    def visit(self, indices: Tensor, teacher_KD: Tensor) -> None:
        """Walk over the blocks whose prototypes are `indices`."""
        V, G, B, N = self.V, self.G, self.B, self.N
        own_cD = self.prototypes_KD.index_select(0, indices)
        a_VBpN = _in_blocks(self.z @ own_cD.T, V, B, N)
        b_GBpN = _in_blocks(self.w @ teacher_KD.index_select(0, indices).T, G, B, N)
        s_VBpN, t_GBpN = a_VBpN.softmax(dim=-1), b_GBpN.softmax(dim=-1)

        mean_pN = (s_VBpN.sum(dim=(0, 1)) + t_GBpN.sum(dim=(0, 1))).div_((V + G) * B)
        g_pN = mean_pN.clamp_min(torch.finfo(mean_pN.dtype).tiny).log_()
        self.kl_of_blocks += (mean_pN * (g_pN + self.log_outcomes)).sum()

        for u in range(V):
            self._visit_view(u, s_VBpN[u], a_VBpN[u], t_GBpN, b_GBpN, g_pN)
        if self.wants_gradient:
            grad_a = s_VBpN[..., :N].reshape(V * B, -1)  # s was replaced by the gradient, in place
            if self.grad_z is not None:
                self.grad_z.view_as(self.z).addmm_(grad_a, own_cD)
            if self.grad_prototypes is not None:
                self.grad_prototypes.index_copy_(0, indices, grad_a.T @ self.z)

    def _visit_view(self, u: int, s_BpN: Tensor, a_BpN: Tensor, t_GBpN: Tensor, b_GBpN: Tensor, g_pN: Tensor) -> None:
        """Add log⟨s, t⟩ of student view u with all teacher views but u; turn s into the gradient on its logits.

        The gradient is s · (κ(pairs − Σ t/d) + λ(g − ⟨s, g⟩)); a pair that underflows brings −κr, not −κst/d.
        """
        kappa, lam, pairs = self.pair_weight, self.mean_weight, 0
        factor_BpN, apart_BpN = None, None
        for v in range(len(t_GBpN)):
            if u == v:
                continue
            pairs += 1
            d_Bp1 = torch.linalg.vecdot(s_BpN, t_GBpN[v]).unsqueeze(-1)
            if float(d_Bp1.min()) < _UNDERFLOW[d_Bp1.dtype]:
                log_d, r_BpN = _agree_in_log_space(a_BpN, b_GBpN[v])
                apart_BpN = r_BpN if apart_BpN is None else apart_BpN.add_(r_BpN)
            else:
                log_d = d_Bp1.log().sum()
                if self.wants_gradient:
                    share_BpN = t_GBpN[v] * d_Bp1.reciprocal_().mul_(-kappa)
                    factor_BpN = share_BpN if factor_BpN is None else factor_BpN.add_(share_BpN)
            self.log_agreement += log_d
        if not self.wants_gradient:
            return
        h_Bp1 = (s_BpN * g_pN).sum(dim=-1, keepdim=True)
        offset_Bp1 = h_Bp1.mul_(-lam).add_(pairs * kappa)
        uniform_pN = lam * g_pN
        factor_BpN = uniform_pN + offset_Bp1 if factor_BpN is None else factor_BpN.add_(uniform_pN).add_(offset_Bp1)
        s_BpN.mul_(factor_BpN)
        if apart_BpN is not None:
            s_BpN.sub_(apart_BpN, alpha=kappa)

    def terms(self) -> tuple[Tensor, Tensor]:
        """Consistency and kl_to_uniform of the whole partition."""
        return -self.pair_weight * self.log_agreement, self.kl_of_blocks / self.P


def _agree_in_log_space(a_BpN: Tensor, b_BpN: Tensor) -> tuple[Tensor, Tensor]:
    """Σ log⟨s, t⟩ and r = softmax(a + b) from the logits, exact where ⟨s, t⟩ underflows."""
    both_BpN = a_BpN + b_BpN
    log_d = (both_BpN.logsumexp(-1) - a_BpN.logsumexp(-1) - b_BpN.logsumexp(-1)).sum()
    return log_d, both_BpN.softmax(dim=-1)


def _in_blocks(logits: Tensor, views: int, batch: int, block_size: int) -> Tensor:
    """[views, B, p, N]; a block of one prototype gets its implicit zero logit."""
    blocks = logits.view(views, batch, -1, block_size)
    return torch.cat([blocks, torch.zeros_like(blocks)], dim=-1) if block_size == 1 else blocks
