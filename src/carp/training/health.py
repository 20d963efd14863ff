"""Is this run learning? Numbers at little cost, and a verdict with its cause and the setting to change.

Limits: with N prototypes in a block, `kl_to_uniform` lies between 0 (all used evenly) and ln N (one takes all);
`consistency` is near 2 ln N while assignments are uniform ("loss stuck at ln K") and near 0 when they are certain
and agree. A block of one prototype has two outcomes, so its limit is ln 2.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F

_DUPLICATE_COSINE = 0.99
_DUPLICATE_SAMPLE = 256
_PROTOTYPES_AT_A_TIME = 8192


class Verdict(StrEnum):
    """The state of a run in a word."""

    HEALTHY = "healthy"
    AT_RISK = "at risk"
    COLLAPSED = "collapsed"
    NOT_YET_LEARNING = "not yet learning"


@dataclass(frozen=True)
class Health:
    """Measurements of one step; shares are between 0 and 1."""

    uncertainty: float  # consistency / (2 ln N): 1 = assignments are uniform or disagree, 0 = certain and equal
    imbalance: float  # kl_to_uniform / ln N: 0 = prototypes used evenly, 1 = one prototype takes all
    prototypes_used: float  # share of prototypes that some view prefers in their block
    prototypes_used_if_even: float  # the same if every view chose at random
    duplicate_prototypes: float  # share with another prototype in (nearly) the same direction
    effective_rank: float  # of the embeddings, from 1 to min(B, D)
    full_rank: int
    spread: float  # of the embeddings' directions: 0 = all alike, 1 = all over the sphere

    def as_dict(self) -> dict[str, float]:
        """For the metrics file."""
        return asdict(self)


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, why, and what to do."""

    verdict: Verdict
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.cause}" + (f" {self.remedy}" if self.remedy else "")


@torch.no_grad()
def measure(consistency: float, kl: float, z_VBD: Tensor, prototypes_KD: Tensor, partition_PN: Tensor) -> Health:
    """Measure the health of one step from what the loss has seen; two views are enough."""
    x = F.normalize(z_VBD[0].float(), dim=-1)
    B, D = x.shape
    limit = math.log(max(2, partition_PN.shape[1]))
    choices = 2 * B
    return Health(
        uncertainty=consistency / (2 * limit),
        imbalance=kl / limit,
        prototypes_used=_share_used(z_VBD[:2].flatten(0, 1), prototypes_KD, partition_PN),
        prototypes_used_if_even=1 - (1 - 1 / max(2, partition_PN.shape[1])) ** choices,
        duplicate_prototypes=_share_duplicate(prototypes_KD[partition_PN.flatten()[:_DUPLICATE_SAMPLE]], prototypes_KD),
        effective_rank=_effective_rank(z_VBD[0].float()),
        full_rank=min(B - 1, D),
        spread=float(x.std(dim=0, unbiased=False).square().sum().sqrt()),
    )


def diagnose(health: Health) -> Diagnosis:
    """Turn measurements into a verdict; the first rule that applies wins."""
    used = health.prototypes_used / health.prototypes_used_if_even
    rules: list[tuple[bool, Verdict, str, str]] = [
        (
            health.imbalance > 0.8,
            Verdict.COLLAPSED,
            f"nearly all images take the same prototype of each block: kl_to_uniform is at "
            f"{health.imbalance:.0%} of its limit ln N_B.",
            "Raise entropy_weight, lower block_size, or raise batch_size.",
        ),
        (
            health.spread < 0.1,
            Verdict.COLLAPSED,
            f"the embeddings of all images point the same way (spread {health.spread:.2f} of 1).",
            "Lower lr, add warmup_epochs, and check that the images differ.",
        ),
        (
            health.uncertainty > 0.97 and health.imbalance < 0.05,
            Verdict.NOT_YET_LEARNING,
            "assignments are still uniform: consistency is at its start, 2 ln N_B.",
            "Normal in the first steps; if it stays, raise embedding_scale or lr.",
        ),
        (
            health.effective_rank < 2 <= 0.03 * health.full_rank,
            Verdict.COLLAPSED,
            f"the embeddings of all images lie on a line: they use {health.effective_rank:.1f} of {health.full_rank} "
            "dimensions.",
            "Raise entropy_weight, use a teacher (teacher_momentum), or lower lr.",
        ),
        (
            health.imbalance > 0.4,
            Verdict.AT_RISK,
            f"a few prototypes take most images: kl_to_uniform is at {health.imbalance:.0%} of ln N_B.",
            "Raise entropy_weight or lower block_size.",
        ),
        (
            used < 0.25,
            Verdict.AT_RISK,
            f"only {health.prototypes_used:.0%} of the prototypes are preferred by any image "
            f"({health.prototypes_used_if_even:.0%} if used evenly).",
            "Raise entropy_weight or lower num_prototypes.",
        ),
        (
            health.duplicate_prototypes > 0.25,
            Verdict.AT_RISK,
            f"{health.duplicate_prototypes:.0%} of the prototypes have a twin.",
            "Lower num_prototypes or lr.",
        ),
        (
            health.effective_rank < max(2.0, 0.03 * health.full_rank),
            Verdict.AT_RISK,
            f"the embeddings use {health.effective_rank:.1f} of {health.full_rank} dimensions.",
            "Raise entropy_weight, or lower lr.",
        ),
    ]
    for applies, verdict, cause, remedy in rules:
        if applies:
            return Diagnosis(verdict, cause, remedy)
    return Diagnosis(Verdict.HEALTHY, "prototypes are used evenly and assignments grow certain.", "")


def _share_used(x_MD: Tensor, prototypes_KD: Tensor, partition_PN: Tensor) -> float:
    """Share of prototypes that are the best of their block for at least one embedding, a few blocks at a time."""
    P, N = partition_PN.shape
    used = 0
    for blocks_pN in torch.split(partition_PN, max(1, _PROTOTYPES_AT_A_TIME // N)):
        logits_MpN = (x_MD.float() @ prototypes_KD[blocks_pN.flatten()].T).view(len(x_MD), -1, N)
        if N == 1:
            used += int((logits_MpN > 0).any(dim=0).sum())
        else:
            preferred_pN = torch.zeros_like(logits_MpN[0], dtype=torch.bool)
            preferred_pN.scatter_(1, logits_MpN.argmax(dim=-1).T, True)
            used += int(preferred_pN.sum())
    return used / (P * N)


def _share_duplicate(sample_MD: Tensor, prototypes_KD: Tensor) -> float:
    """Share of a sample that has a twin among all prototypes, compared a part at a time."""
    unit_MD = F.normalize(sample_MD.float(), dim=-1)
    alike_M = torch.zeros(len(unit_MD), device=unit_MD.device)
    for part in torch.split(prototypes_KD, _PROTOTYPES_AT_A_TIME):
        cosine = unit_MD @ F.normalize(part.float(), dim=-1).T
        alike_M += (cosine > _DUPLICATE_COSINE).sum(dim=1)
    return float((alike_M > 1).float().mean())  # one is the prototype itself


def _effective_rank(x_BD: Tensor) -> float:
    """Exp of the entropy of the normalised singular values of the centred embeddings (Roy & Vetterli, 2007)."""
    centred = (x_BD - x_BD.mean(dim=0)).double()
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    p = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))
