"""The loss of CARP: consistent assignments within blocks, and a uniform mean assignment for every block.

Shapes: V student views, G = 2 teacher (global) views, B images, D embedding, K prototypes, P blocks, N prototypes in
a block. A block of one prototype (N = 1) is a Bernoulli problem, the prototype against an implicit zero logit, so its
assignments have two entries.
"""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple, TypedDict, get_args

import torch
from torch import Tensor

from carp.errors import ModelError
from carp.model.head import LEAST_COLLISION, PAIR_FACTOR, GlobalBatch, Pairs, Uniformity, fused_loss
from carp.model.koleo import LEAST_DISTANCE, koleo

Embeddings = Tensor | Sequence[Tensor]


class LossOptions(TypedDict, total=False):
    """The options of `carp_loss` that define the loss; the others define how it is computed."""

    entropy_weight: float
    pairs: Pairs
    uniformity: Uniformity
    koleo_weight: float
    koleo_distance: float


class LossTerms(NamedTuple):
    """The loss and its two terms, as scalars. Call `backward` only on `total`."""

    total: Tensor
    consistency: Tensor
    kl_to_uniform: Tensor


def carp_loss(
    z: Embeddings,
    w: Embeddings,
    prototypes: Tensor,
    teacher_prototypes: Tensor,
    partition: Tensor,
    *,
    entropy_weight: float = 1.0,
    pairs: Pairs = "sum",
    uniformity: Uniformity = "entropy",
    koleo_weight: float = 0.0,
    koleo_distance: float = LEAST_DISTANCE,
    chunk: int | None = None,
    global_batch: GlobalBatch | None = None,
) -> LossTerms:
    """Compute the loss of student embeddings against teacher embeddings for one partition.

    It takes little more time than its matrix products. The gradient of `total` is computed in the same pass (see
    `carp.model.head`), and no tensor of size B × K is ever allocated.

    Args:
        z: Student embeddings of V >= 2 views, the global views first: a list of [B, D] or one [V, B, D].
        w: Teacher embeddings of the first two views, in the same form; no gradient flows into them.
        prototypes: Student prototypes [K, D], used as given: normalise them first.
        teacher_prototypes: Teacher prototypes [K, D]; no gradient flows into them.
        partition: LongTensor [P, N] of prototype indices, one row per block. On the CPU, its range and sum are
            checked. With the environment variable CARP_DEBUG=1, it must contain every prototype exactly once, on any
            device.
        entropy_weight: Weight of the uniformity term.
        pairs: `sum` adds both directions of a pair of views (twice the mean over ordered pairs), `mean` averages them.
        uniformity: The second term of the loss: `entropy` is `kl_to_uniform`; `collision` is the logarithm of N times
            the probability that two different images get the same assignment.
        koleo_weight: Weight of the third term, `koleo` of the student's global views; 0 leaves it out, as in the paper.
        koleo_distance: Distance of neighbours at which that term pushes hardest (`carp.model.koleo`).
        chunk: Blocks at a time; by default chosen from the batch size and the block size. It affects only rounding.
        global_batch: The whole batch, if several processes share its images or blocks (`carp.model.shared_loss`).

    Returns:
        `LossTerms(total, consistency, kl_to_uniform)` with total = consistency + entropy_weight * kl_to_uniform, or the
        collision in place of `kl_to_uniform`, + koleo_weight * koleo. Only `total` can be differentiated.
    """
    z_VBD, w_GBD = _stack(z, "z"), _stack(w, "w").detach()
    _check(z_VBD, w_GBD, prototypes, teacher_prototypes, partition)
    _check_words(pairs, uniformity)
    if chunk is not None and chunk < 1:
        raise ModelError(f"chunk must be at least 1 block, received {chunk}.")
    terms = fused_loss(
        z_VBD,
        w_GBD,
        prototypes,
        teacher_prototypes.detach(),
        partition,
        entropy_weight=entropy_weight,
        pairs=pairs,
        uniformity=uniformity,
        chunk=chunk,
        global_batch=global_batch,
    )
    return with_koleo(LossTerms(*terms), koleo_weight, koleo_distance, z_VBD)


def with_koleo(terms: LossTerms, weight: float, distance: float, z_VBD: Tensor, *, copies: int = 1) -> LossTerms:
    """Add the KoLeo term of the global views of all images to the total.

    If several processes compute it from the embeddings of all, their gradients are summed, so each contributes one of
    `copies` equal shares; the value stays that of the whole.
    """
    if not weight:
        return terms
    term = koleo(z_VBD[:2], distance)
    own = term if copies == 1 else term / copies + (1 - 1 / copies) * term.detach()
    return terms._replace(total=terms.total + weight * own)


def reference_loss(
    z: Embeddings,
    w: Embeddings,
    prototypes: Tensor,
    teacher_prototypes: Tensor,
    partition: Tensor,
    *,
    entropy_weight: float = 1.0,
    pairs: Pairs = "sum",
    uniformity: Uniformity = "entropy",
    koleo_weight: float = 0.0,
    koleo_distance: float = LEAST_DISTANCE,
) -> LossTerms:
    """Compute the same loss with the paper's pseudo-code, for reading and for tests.

    With p̄ the mean assignment of a block over all views and images, and s_u, t_v the assignments of student view u and
    teacher view v, the terms are means over images and blocks:

        consistency   = 2 · mean over pairs u ≠ v of −log⟨s_u, t_v⟩, without the factor 2 if `pairs` is `mean`
        kl_to_uniform = log N − H(p̄)

    A positive `koleo_weight` adds `koleo` of the student's global views, which the paper does not have.

    With `uniformity: collision`, the second term is instead the mean over blocks of log(N · U), where U is the mean of
    ⟨a_i, a_j⟩ over pairs of different images, and a_i is the mean assignment of image i over all views.

    The logarithm is taken of a product of probabilities. Where that product underflows, the loss is infinite and has no
    gradient; `carp_loss` handles this case in log space. The authors' code instead clamps the product and p̄ to between
    ε and 1 − ε, where ε is about 1e-7, so it has no gradient where views agree or disagree completely. CARP does not
    clamp.
    """
    z_VBD, w_GBD = _stack(z, "z"), _stack(w, "w").detach()
    _check(z_VBD, w_GBD, prototypes, teacher_prototypes, partition)
    _check_words(pairs, uniformity)
    s_VBPN = _block_logits(z_VBD, prototypes, partition).softmax(dim=-1)
    t_GBPN = _block_logits(w_GBD, teacher_prototypes.detach(), partition).softmax(dim=-1)

    agreement = [
        -torch.log((s_VBPN[u] * t_GBPN[v]).sum(dim=-1)).mean() for u, v in _ordered_pairs(len(s_VBPN), len(t_GBPN))
    ]
    consistency = PAIR_FACTOR[pairs] * torch.stack(agreement).mean()
    kl = kl_to_uniform(mean_assignment(s_VBPN, t_GBPN))
    uniform = kl if uniformity == "entropy" else collision(s_VBPN, t_GBPN)
    terms = LossTerms(consistency + entropy_weight * uniform, consistency, kl)
    return with_koleo(terms, koleo_weight, koleo_distance, z_VBD)


def mean_assignment(s_VBPN: Tensor, t_GBPN: Tensor) -> Tensor:
    """Return p̄ [P, N], the mean assignment of every block over all views of both branches and all images."""
    return torch.cat([s_VBPN, t_GBPN]).mean(dim=(0, 1))


def kl_to_uniform(mean_PN: Tensor) -> Tensor:
    """Return the mean over blocks of log N − H(p̄): 0 if a block is used evenly, log N if one prototype takes all."""
    tiny = torch.finfo(mean_PN.dtype).tiny  # the logarithm's gradient at 0 would be infinite
    entropy_P: Tensor = -(mean_PN * mean_PN.clamp_min(tiny).log()).sum(dim=-1)
    return (math.log(mean_PN.shape[-1]) - entropy_P).mean()


def collision(s_VBPN: Tensor, t_GBPN: Tensor) -> Tensor:
    """Return the mean over blocks of log(N · U): 0 if images are independent and uniform, log N if all are the same."""
    a_BPN = torch.cat([s_VBPN, t_GBPN]).mean(dim=0)
    B, _, N = a_BPN.shape
    if B < 2:
        return a_BPN.new_zeros(())
    U_P = (a_BPN.sum(dim=0).square().sum(dim=-1) - a_BPN.square().sum(dim=(0, 2))) / (B * (B - 1))
    return (N * U_P).clamp_min(LEAST_COLLISION).log().mean()


def _block_logits(x_VBD: Tensor, prototypes_KD: Tensor, partition_PN: Tensor) -> Tensor:
    """Return the logits [V, B, P, N] of every view in every block; N = 1 gets its implicit zero logit."""
    logits_VBPN = (x_VBD @ prototypes_KD.T)[..., partition_PN]
    if partition_PN.shape[1] == 1:
        logits_VBPN = torch.cat([logits_VBPN, torch.zeros_like(logits_VBPN)], dim=-1)
    return logits_VBPN


def _ordered_pairs(num_views: int, num_global: int) -> list[tuple[int, int]]:
    return [(u, v) for v in range(num_global) for u in range(num_views) if u != v]


def _stack(embeddings: Embeddings, name: str) -> Tensor:
    if isinstance(embeddings, Tensor):
        return embeddings
    if not embeddings:
        raise ModelError(f"{name} must contain the embeddings of at least two views, received none.")
    shapes = {tuple(e.shape) for e in embeddings}
    if len(shapes) > 1:
        raise ModelError(f"all views in {name} must have the same shape [B, D], received {sorted(shapes)}.")
    return torch.stack(list(embeddings))


def _check(z_VBD: Tensor, w_GBD: Tensor, prototypes_KD: Tensor, teacher_KD: Tensor, partition_PN: Tensor) -> None:
    """Raise a `ModelError` that names the tensor, what it must be and what was received."""
    if z_VBD.ndim != 3 or len(z_VBD) < 2:
        raise ModelError(f"z must be [V >= 2, B, D], received {list(z_VBD.shape)}.")
    _, B, D = z_VBD.shape
    if B < 1:
        raise ModelError(f"z must contain at least one image, received {list(z_VBD.shape)}.")
    if tuple(w_GBD.shape) != (2, B, D):
        raise ModelError(f"w must be [2, {B}, {D}]: the global views of the same images, received {list(w_GBD.shape)}.")
    K = len(prototypes_KD)
    for name, tensor in (("prototypes", prototypes_KD), ("teacher_prototypes", teacher_KD)):
        if tuple(tensor.shape) != (K, D):
            raise ModelError(f"{name} must be [{K}, {D}], received {list(tensor.shape)}.")
    others = {"w": w_GBD, "prototypes": prototypes_KD, "teacher_prototypes": teacher_KD, "partition": partition_PN}
    for name, tensor in {"z": z_VBD, **others}.items():
        if name != "partition" and not tensor.is_floating_point():
            raise ModelError(f"{name} must contain floating-point numbers, received {tensor.dtype}.")
        if tensor.device != z_VBD.device:
            raise ModelError(f"{name} must be on the device of z, {z_VBD.device}, received {tensor.device}.")
    wide = {name for name, x in (("z", z_VBD), *others.items()) if x.dtype == torch.float64}
    if wide and len(wide) < 4:
        raise ModelError(f"float64 must be used for all tensors or none, received it for {', '.join(sorted(wide))}.")
    _check_partition(partition_PN, K)


def _check_words(pairs: str, uniformity: str) -> None:
    for name, word, known in (("pairs", pairs, tuple(PAIR_FACTOR)), ("uniformity", uniformity, get_args(Uniformity))):
        if word not in known:
            raise ModelError(f"{name} must be {' or '.join(known)}, received '{word}'.")


def _check_partition(partition_PN: Tensor, num_prototypes: int) -> None:
    """Check type and shape; on the CPU also range and sum; with CARP_DEBUG=1 everywhere that it is a permutation.

    To read values on another device, the host would have to wait for it.
    """
    K = num_prototypes
    if partition_PN.dtype != torch.int64 or partition_PN.ndim != 2 or partition_PN.numel() != K or not K:
        raise ModelError(
            f"partition must be a LongTensor [P, N] with P * N = {K} prototypes, received "
            f"{partition_PN.dtype} {list(partition_PN.shape)}."
        )
    debug = os.environ.get("CARP_DEBUG", "0") not in {"", "0"}
    if partition_PN.device.type != "cpu" and not debug:
        return
    least, most, total = torch.stack([partition_PN.min(), partition_PN.max(), partition_PN.sum()]).tolist()
    if least < 0 or most >= K:
        raise ModelError(f"partition must contain indices from 0 to {K - 1}, received {least if least < 0 else most}.")
    if total != K * (K - 1) // 2 or debug:
        counts_K = torch.bincount(partition_PN.flatten(), minlength=K)
        repeated, missing = (counts_K > 1).nonzero().flatten(), (counts_K == 0).nonzero().flatten()
        if len(repeated):
            raise ModelError(
                f"partition must have every prototype once: {len(repeated)} are repeated (first {int(repeated[0])}), "
                f"{len(missing)} missing (first {int(missing[0])})."
            )
