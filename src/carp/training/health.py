"""Is this run learning? Numbers at little cost, and a verdict with its cause and the setting to change.

Limits: with N prototypes in a block, `kl_to_uniform` lies between 0 (all used evenly) and ln N (one takes all);
the mean consistency of a pair of views is near ln N while assignments are uniform ("loss stuck at ln K") and near 0
when they are certain and agree. A block of one prototype has two outcomes, so its limit is ln 2.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F

from carp.compute.device import has_float64
from carp.model.certainty import certainty

_DUPLICATE_COSINE = 0.99
_DUPLICATE_SAMPLE = 256
_PROTOTYPES_AT_A_TIME = 8192
_COMPARED_IMAGES = 1024  # of a larger batch

# Thresholds, from the development grid of benchmarks/verdicts.py
_FIRST_STEPS = 20  # photographs show a gain from here on: batch norm and momentum have settled
_ENOUGH_STEPS = 100  # the slowest run that learned, with strong colour changes, showed a gain from step 120 on
_STANDARD_ERRORS = 2.5
_RANK_GAIN = 1.1  # without augmentation the rank grows by 20% to 56%
_STILL = 0.005  # weight change of an encoder that is still the untrained one; runs that learn reach 0.02 to 0.2
_FAR = 1.0  # weight change from which on nothing of the start is left; a learning rate of 100 reaches 3 to 13
_ALIKE = 0.99  # agreement at the start of views without augmentation; with it, 0.5 to 0.8
_WORSE_BY = 0.01  # of the start's value: less is within the noise of the measures
_SMALL_BATCH = 15  # images less one: too few to compare


class Verdict(StrEnum):
    """The state of a run in a word."""

    TOO_EARLY = "too early to tell"
    HEALTHY = "healthy"
    BELOW_PIXELS = "below raw pixels"
    WORSE = "worse than the start"
    AT_RISK = "at risk"
    NOT_LEARNING = "not learning"
    COLLAPSED = "collapsed"


@dataclass(frozen=True)
class Health:
    """Measurements of one step; shares are between 0 and 1."""

    uncertainty: float  # consistency of a pair / ln N: 1 = assignments are uniform or disagree, 0 = certain and equal
    imbalance: float  # kl_to_uniform / ln N: 0 = prototypes used evenly, 1 = one prototype takes all
    prototypes_used: float  # share of prototypes that some view prefers in their block
    prototypes_used_if_even: float  # the same if every view chose at random
    duplicate_prototypes: float  # share with another prototype in (nearly) the same direction
    effective_rank: float  # of the embeddings, from 1 to min(B, D)
    full_rank: int
    spread: float  # of the embeddings' directions: 0 = all alike, 1 = all over the sphere
    agreement: float  # chance that a view is nearer to the other view of its image than to that of another image
    agreement_error: float  # standard error of it
    # The next four are None in records of older versions; no verdict depends on them
    certainty: float | None = None  # mean over images and blocks of the student's largest assignment
    entropy: float | None = None  # mean entropy of the student's assignments / ln N: 1 = uniform, 0 = certain
    teacher_certainty: float | None = None
    teacher_entropy: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """For the metrics file."""
        return asdict(self)


@dataclass(frozen=True)
class Knn:
    """k-NN accuracies with labels (`--val`): of the run, and of what it has to beat."""

    run: float  # the better of student and teacher
    untrained: float  # the encoder before its first step
    raw_pixels: float


@dataclass(frozen=True)
class Comparison:
    """A run that began with given weights, compared with them by k-NN or, without labels, by held-out images."""

    measure: str  # in words
    now: float
    start: float
    best: float
    best_step: int
    noise: float = 0.0  # how far a checkpoint must be ahead of the start to count as better


@dataclass(frozen=True)
class Progress:
    """How far a run has come since its start."""

    steps: int  # that are done
    start: Health | None  # the first measurement; None if an older version began the run
    gain: float  # in agreement since the start, over the last measurements, in standard errors
    weight_change: float  # distance of the encoder's weights from their start, relative to their norm
    knn: Knn | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, why, and what to do."""

    verdict: Verdict
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.cause}" + (f" {self.remedy}" if self.remedy else "")


@torch.no_grad()
def measure(
    consistency: float,
    kl: float,
    z_VBD: Tensor,
    prototypes_KD: Tensor,
    partition_PN: Tensor,
    teacher: tuple[Tensor, Tensor] | None = None,
) -> Health:
    """Measure the health of one step from what the loss has seen; two views are enough.

    `consistency` is the mean over pairs of views, whatever `pairs` is. `teacher` has the teacher's embeddings [V, B, D]
    and prototypes [K, D].
    """
    x = F.normalize(z_VBD[0].float(), dim=-1)
    B, D = x.shape
    limit = math.log(max(2, partition_PN.shape[1]))
    choices = 2 * B
    agreement, error = _agreement(z_VBD[:2])
    own = certainty(z_VBD[:2, :_COMPARED_IMAGES].flatten(0, 1), prototypes_KD, partition_PN)
    of_teacher = None
    if teacher is not None:
        of_teacher = certainty(teacher[0][:2, :_COMPARED_IMAGES].flatten(0, 1), teacher[1], partition_PN)
    return Health(
        uncertainty=consistency / limit,
        imbalance=kl / limit,
        prototypes_used=_share_used(z_VBD[:2].flatten(0, 1), prototypes_KD, partition_PN),
        prototypes_used_if_even=1 - (1 - 1 / max(2, partition_PN.shape[1])) ** choices,
        duplicate_prototypes=_share_duplicate(prototypes_KD[partition_PN.flatten()[:_DUPLICATE_SAMPLE]], prototypes_KD),
        effective_rank=effective_rank(z_VBD[0].float()),
        full_rank=min(B - 1, D),
        spread=float(x.std(dim=0, unbiased=False).square().sum().sqrt()),
        agreement=agreement,
        agreement_error=error,
        certainty=own.largest,
        entropy=own.entropy,
        teacher_certainty=of_teacher and of_teacher.largest,
        teacher_entropy=of_teacher and of_teacher.entropy,
    )


def diagnose(now: Health, progress: Progress) -> Diagnosis:
    """Turn measurements into a verdict; the first rule that applies wins."""
    rules = (_collapsed, _worse, _too_early, _no_better_by_labels, _not_learning, _at_risk, _below_pixels)
    for rule in rules:
        if found := rule(now, progress):
            return found
    return Diagnosis(Verdict.HEALTHY, _what_is_learned(now, progress), "")


def _collapsed(now: Health, progress: Progress) -> Diagnosis | None:
    """All images look alike to the model."""
    if now.imbalance > 0.8:
        cause = (
            "nearly all images are assigned to the same prototype of each block: kl_to_uniform is at "
            f"{now.imbalance:.0%} of its limit ln N_B."
        )
        remedy = "Raise entropy_weight, lower block_size, or raise batch_size."
    elif now.spread < 0.1:
        cause = f"the embeddings of all images point in the same direction (spread {now.spread:.2f} of 1)."
        remedy = "Check that the images differ, raise entropy_weight, or lower lr."
    elif now.effective_rank < 2 <= 0.03 * now.full_rank:
        cause = (
            f"the embeddings of all images lie on a line: they use {now.effective_rank:.1f} of {now.full_rank} "
            "dimensions."
        )
        remedy = "Raise entropy_weight, use a teacher (teacher_momentum), or lower lr."
    else:
        return None
    return Diagnosis(Verdict.COLLAPSED, cause, _too_fast(progress) or remedy)


def _worse(_: Health, progress: Progress) -> Diagnosis | None:
    """The encoder was better before it was trained."""
    found = progress.comparison
    if found is None or found.now >= found.start - _WORSE_BY * abs(found.start):
        return None
    used = "the start itself" if found.best_step == 0 else f"that after step {found.best_step}"
    return Diagnosis(
        Verdict.WORSE,
        f"{found.measure} is {found.now:.1%}, {found.start:.1%} for the weights that the run started from.",
        f"{_too_fast(progress) or 'Lower lr, or raise start_share or warmup_epochs.'} Until the run is better, its "
        f"best checkpoint is used: {used}.",
    )


def _too_early(now: Health, progress: Progress) -> Diagnosis | None:
    """It is too early to judge the first steps, or a run that has made no progress in a few steps."""
    enough = progress.steps >= (_FIRST_STEPS if _has_gained(now, progress) else _ENOUGH_STEPS)
    if enough:
        return None
    cause = (
        f"{progress.steps} {'step is' if progress.steps == 1 else 'steps are'} done, and the encoder's weights have "
        f"moved by {_distance(progress.weight_change)}."
    )
    return Diagnosis(
        Verdict.TOO_EARLY, cause, f"A verdict needs up to {_ENOUGH_STEPS} steps; if that is all, raise epochs."
    )


def _no_better_by_labels(now: Health, progress: Progress) -> Diagnosis | None:
    """k-NN says that the encoder is no better than at its start."""
    knn = progress.knn
    if knn is None or knn.run > knn.untrained or progress.comparison is not None:
        return None
    cause = (
        f"k-NN {knn.run:.1%} is no better than that of the untrained encoder, {knn.untrained:.1%} "
        f"(raw pixels {knn.raw_pixels:.1%})."
    )
    why, remedy = _why_not(now, progress)
    return Diagnosis(Verdict.NOT_LEARNING, f"{cause} {why[0].upper()}{why[1:]}", remedy)


def _not_learning(now: Health, progress: Progress) -> Diagnosis | None:
    """The views of an image are not recognised better than by the untrained encoder."""
    if progress.start is None and progress.weight_change >= _STILL:
        return None  # an older version began the run: there is no start to compare with
    if _has_gained(now, progress):
        return None
    return Diagnosis(Verdict.NOT_LEARNING, *_why_not(now, progress))


def _why_not(now: Health, progress: Progress) -> tuple[str, str]:
    """The likeliest cause of no progress, and its remedy."""
    if progress.weight_change < _STILL:
        return (
            f"the encoder's weights have moved by only {_distance(progress.weight_change)} in {progress.steps} steps.",
            "The learning rate is too small: raise lr.",
        )
    cause = _what_is_learned(now, progress)
    if remedy := _too_fast(progress):
        return cause, remedy
    if now.full_rank < _SMALL_BATCH:
        return cause, f"A batch of {now.full_rank + 1} images is too small to average assignments: raise batch_size."
    if now.agreement < 0.5 + _STANDARD_ERRORS * now.agreement_error:
        return (
            f"{cause} By chance it is 50%.",
            "Check with `carp views` that the images differ, and that views of one of them still show the same thing; "
            "then raise epochs.",
        )
    if now.uncertainty > 0.97 and now.imbalance < 0.05:
        return f"{cause} Assignments are uniform.", "Lower entropy_weight, or raise embedding_scale."
    return cause, "Check with `carp views` that views of an image still show the same thing; raise epochs, or lower lr."


def _at_risk(now: Health, progress: Progress) -> Diagnosis | None:
    """The run learns, but from views that hardly differ, or a part of the model is hardly used."""
    used = now.prototypes_used / now.prototypes_used_if_even
    rules = [
        (
            progress.start is not None and progress.start.agreement > _ALIKE,
            f"{_what_is_learned(now, progress)} The views of an image hardly differ, so there is little to learn.",
            "Look at them with `carp views`; lower global_scale or raise jitter.",
        ),
        (
            now.imbalance > 0.4,
            f"a few prototypes take most images: kl_to_uniform is at {now.imbalance:.0%} of ln N_B.",
            "Raise entropy_weight or lower block_size.",
        ),
        (
            used < 0.25,
            f"only {now.prototypes_used:.0%} of the prototypes are preferred by any image "
            f"({now.prototypes_used_if_even:.0%} if used evenly).",
            "Raise entropy_weight or lower num_prototypes.",
        ),
        (
            now.duplicate_prototypes > 0.25,
            f"{now.duplicate_prototypes:.0%} of the prototypes have a duplicate.",
            "Lower num_prototypes or lr.",
        ),
        (
            now.effective_rank < max(2.0, 0.03 * now.full_rank),
            f"the embeddings use {now.effective_rank:.1f} of {now.full_rank} dimensions.",
            "Raise entropy_weight, or lower lr.",
        ),
    ]
    for applies, cause, remedy in rules:
        if applies:
            return Diagnosis(Verdict.AT_RISK, cause, _too_fast(progress) or remedy)
    return None


def _below_pixels(_: Health, progress: Progress) -> Diagnosis | None:
    """The run learns, but comparing the pixels themselves still works better."""
    knn = progress.knn
    if knn is None or knn.run >= knn.raw_pixels:
        return None
    before = "untrained" if progress.comparison is None else "start"
    return Diagnosis(
        Verdict.BELOW_PIXELS,
        f"the encoder learns (k-NN {knn.run:.1%}, {before} {knn.untrained:.1%}), but raw pixels reach "
        f"{knn.raw_pixels:.1%}.",
        "Raise epochs.",
    )


def _has_gained(now: Health, progress: Progress) -> bool:
    """Whether views of an image are recognised better than at the start, by more than batches differ by chance.

    Without augmentation they are recognised from the start; then images that differ in more ways are a gain. Where a
    batch has too few images to compare, only assignments that grow certain count.
    """
    if progress.start is None or progress.weight_change < _STILL:
        return False
    if now.full_rank < _SMALL_BATCH and now.uncertainty > 0.9:
        return False
    in_more_ways = now.effective_rank > _RANK_GAIN * progress.start.effective_rank
    if progress.start.agreement > _ALIKE and in_more_ways:
        return progress.gain > -_STANDARD_ERRORS
    return progress.gain > _STANDARD_ERRORS


def _too_fast(progress: Progress) -> str:
    """The remedy for steps that are too large, if they are."""
    if progress.weight_change < _FAR:
        return ""
    return f"The weights have moved by {_distance(progress.weight_change)}, so the steps are too large: lower lr."


def _what_is_learned(now: Health, progress: Progress) -> str:
    start = "" if progress.start is None else f", {progress.start.agreement:.0%} at the start"
    return (
        f"a view is nearer to the other view of its image than to another image in {now.agreement:.0%} of cases{start}."
    )


def _distance(share: float) -> str:
    return f"{100 * share:.2g}% of their norm" if share < 1 else f"{share:,.1f} times their norm"


def _agreement(z_VBD: Tensor) -> tuple[float, float]:
    """Chance that a view is nearer to the other view of its image than to another image's, and its standard error.

    The mean is subtracted from the embeddings, so that 0.5 is chance even if all of them point the same way.
    """
    if z_VBD.shape[1] < 2:  # nothing to compare with
        return 0.5, 0.5
    z_VBD = z_VBD[:, :_COMPARED_IMAGES].float()
    a_BD, b_BD = F.normalize(z_VBD - z_VBD.mean(dim=1, keepdim=True), dim=-1)
    B, cosine_BB = len(a_BD), a_BD @ b_BD.T
    own_B1 = cosine_BB.diagonal()[:, None]
    ties_B = (cosine_BB == own_B1).sum(dim=1) - 1
    nearer_B = ((cosine_BB < own_B1).sum(dim=1) + 0.5 * ties_B) / (B - 1)
    return float(nearer_B.mean()), float(nearer_B.std() / math.sqrt(B))


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


def effective_rank(x_BD: Tensor) -> float:
    """Exp of the entropy of the normalised singular values of the centred embeddings (Roy & Vetterli, 2007)."""
    centred = x_BD - x_BD.mean(dim=0)
    centred = (centred if has_float64(centred.device) else centred.cpu()).double()  # a square loses half of the digits
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    p = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))
