"""Health of a run: measurements of synthetic embeddings, and every verdict with its cause and a setting to change."""

import math
import re
import statistics
from dataclasses import replace

import pytest
import torch

from carp.config import Config
from carp.model.loss import carp_loss
from carp.training.health import Comparison, Diagnosis, Health, Knn, Progress, Verdict, diagnose, measure

WELL = Health(
    uncertainty=0.3,
    imbalance=0.05,
    prototypes_used=0.8,
    prototypes_used_if_even=0.9,
    duplicate_prototypes=0.0,
    effective_rank=60.0,
    full_rank=128,
    spread=0.95,
    agreement=0.85,
    agreement_error=0.02,
)
START = replace(WELL, uncertainty=0.95, agreement=0.6)
LEARNING = Progress(steps=200, start=START, gain=9.0, weight_change=0.15)


def measured(z, prototypes, partition, consistency=1.0, kl=0.1):
    return measure(consistency, kl, z, prototypes, partition, (z, prototypes))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def blocks(num_prototypes, block_size):
    return torch.arange(num_prototypes).view(-1, block_size)


# Measurements


@pytest.mark.parametrize("block", [1, 2, 8, 64])
def test_uncertainty_and_imbalance_are_one_at_their_limits(block):
    z, c = torch.randn(2, 16, 8, generator=generator()), torch.randn(64, 8, generator=generator(1))
    limit = math.log(max(2, block))
    found = measured(z, c, blocks(64, block), consistency=limit, kl=limit)
    assert found.uncertainty == pytest.approx(1.0)
    assert found.imbalance == pytest.approx(1.0)
    assert measured(z, c, blocks(64, block), consistency=0.0, kl=0.0).imbalance == 0.0


@pytest.mark.parametrize("rank", [1, 2, 5, 12])
@pytest.mark.parametrize("images", [40, 24])
def test_effective_rank_of_equal_directions_is_their_number(rank, images):
    # ± the first `rank` axes: centred, with equal singular values; wider or taller than D makes no difference
    dim = 32
    z = torch.zeros(2 * rank, dim)
    z[:rank, :rank], z[rank:, :rank] = torch.eye(rank), -torch.eye(rank)
    repeats = -(-images // (2 * rank))
    z = z.repeat(repeats, 1) * 7.0 + 3.0
    found = measured(torch.stack([z, z]), torch.randn(8, dim, generator=generator()), blocks(8, 4))
    assert found.effective_rank == pytest.approx(rank, rel=1e-4)


def test_effective_rank_of_known_singular_values_is_the_exponential_of_their_entropy():
    z = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # singular values in proportion 3 : 1
    found = measured(torch.stack([z, z]), torch.eye(2), blocks(2, 2))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.effective_rank == pytest.approx(math.exp(entropy), rel=1e-6)


def test_effective_rank_of_equal_embeddings_is_one_and_of_noise_is_nearly_full():
    c = torch.randn(8, 16, generator=generator())
    assert measured(torch.ones(2, 64, 16), c, blocks(8, 4)).effective_rank == pytest.approx(1.0)
    found = measured(torch.randn(2, 4096, 16, generator=generator()), c, blocks(8, 4))
    assert 15.9 < found.effective_rank <= 16.0
    assert found.full_rank == 16


def test_full_rank_is_limited_by_the_batch_less_one_for_the_mean():
    found = measured(
        torch.randn(2, 8, 16, generator=generator()), torch.randn(8, 16, generator=generator()), blocks(8, 4)
    )
    assert found.full_rank == 7


def test_spread_is_zero_for_one_direction_and_one_for_all():
    c = torch.randn(8, 16, generator=generator())
    lengths = torch.linspace(1, 9, 64)[:, None]
    assert measured((lengths * torch.ones(16)).expand(2, 64, 16), c, blocks(8, 4)).spread == pytest.approx(0, abs=1e-3)
    opposite = torch.cat([torch.eye(16), -torch.eye(16)]).expand(2, 32, 16)
    assert measured(opposite, c, blocks(8, 4)).spread == pytest.approx(1.0, rel=1e-6)


def test_share_used_counts_the_prototypes_that_some_view_prefers_in_its_block():
    # Prototypes are the axes, blocks (0, 1) and (2, 3). View 1 prefers 0 and 2; view 2 prefers 1 and 2.
    z = torch.tensor([[[2.0, 1.0, 2.0, 1.0]], [[1.0, 2.0, 2.0, 1.0]]])
    assert measured(z, torch.eye(4), blocks(4, 2)).prototypes_used == 0.75
    # In one block, view 1 prefers 0 (the first of equals) and view 2 prefers 1.
    z = torch.tensor([[[3.0, 1.0, 2.0, 1.0]], [[1.0, 3.0, 2.0, 1.0]]])
    assert measured(z, torch.eye(4), blocks(4, 4)).prototypes_used == 0.5


def test_share_used_follows_the_partition_and_not_the_position():
    z = torch.tensor([[[4.0, 3.0, 2.0, 1.0]]]).repeat(2, 1, 1)
    assert measured(z, torch.eye(4), torch.tensor([[0, 3], [1, 2]])).prototypes_used == 0.5  # 0 and 1
    one = measured(z, torch.eye(4), torch.tensor([[0, 1, 2, 3]]))
    assert one.prototypes_used == 0.25


def test_a_block_of_one_is_used_if_some_logit_is_positive():
    z = torch.tensor([[[1.0, -1.0, -1.0, -1.0]], [[-1.0, 1.0, -1.0, -1.0]]])
    assert measured(z, torch.eye(4), blocks(4, 1)).prototypes_used == 0.5


def test_share_used_of_many_blocks_equals_one_block_at_a_time():
    K, N = 3 * 8192, 16  # more prototypes than are taken at once
    z, c = torch.randn(2, 4, 8, generator=generator()), torch.randn(K, 8, generator=generator(1))
    partition = torch.randperm(K, generator=generator(2)).view(-1, N)
    used = 0
    for block in partition:
        used += len(set((z.flatten(0, 1) @ c[block].T).argmax(dim=1).tolist()))
    assert measured(z, c, partition).prototypes_used == pytest.approx(used / K, abs=1e-4)


def test_random_choices_use_the_announced_share_of_prototypes():
    # Independent logits: the embedding dimension holds a logit for each prototype
    z = torch.randn(2, 40, 4096, generator=generator())
    found = measured(z, torch.eye(4096), blocks(4096, 64))
    assert found.prototypes_used_if_even == pytest.approx(1 - (63 / 64) ** 80)
    assert found.prototypes_used == pytest.approx(found.prototypes_used_if_even, abs=0.02)


def test_duplicates_are_prototypes_with_a_twin_of_the_same_direction():
    z = torch.randn(2, 16, 32, generator=generator())
    assert measured(z, torch.eye(32), blocks(32, 8)).duplicate_prototypes == 0.0
    twins = torch.eye(32)
    twins[8:16] = twins[:8] * 3.0  # length does not matter
    assert measured(z, twins, blocks(32, 8)).duplicate_prototypes == 0.5
    opposite = torch.eye(32)
    opposite[16:] = -opposite[:16]  # opposite is not the same
    assert measured(z, opposite, blocks(32, 8)).duplicate_prototypes == 0.0


def test_twins_are_found_among_many_more_prototypes_than_are_sampled():
    # 8,192 prototypes, each with one twin somewhere else in the partition
    half = torch.randn(4096, 32, generator=generator(4))
    order = torch.randperm(8192, generator=generator(5))
    z = torch.randn(2, 16, 32, generator=generator())
    found = measured(z, torch.cat([half, half]), order.view(-1, 64))
    assert found.duplicate_prototypes > 0.9
    single = torch.randn(8192, 32, generator=generator(6))
    assert measured(z, single, order.view(-1, 64)).duplicate_prototypes < 0.1


def test_measuring_leaves_no_graph_and_gives_plain_numbers():
    z = torch.randn(2, 16, 8, generator=generator(), requires_grad=True)
    c = torch.randn(64, 8, generator=generator(1), requires_grad=True)
    values = measured(z, c, blocks(64, 8)).as_dict()
    assert all(type(value) in {float, int} for value in values.values())
    assert z.grad is None


def test_bfloat16_embeddings_can_be_measured():
    z = torch.randn(2, 16, 8, generator=generator()).bfloat16()
    found = measured(z, torch.randn(64, 8, generator=generator(1)), blocks(64, 8))
    assert all(math.isfinite(value) for value in found.as_dict().values())


def test_agreement_counts_how_often_the_own_view_is_the_nearer_one():
    z = torch.randn(1, 40, 6, generator=generator(1)) + torch.randn(2, 40, 6, generator=generator(2))
    a, b = z - z.mean(dim=1, keepdim=True)
    shares = []
    for i in range(40):
        cosines = [float(torch.dot(a[i], b[j]) / a[i].norm() / b[j].norm()) for j in range(40)]
        shares.append(sum(cosine < cosines[i] for cosine in cosines) / 39)
    found = measured(z, torch.eye(6), blocks(6, 3))
    assert found.agreement == pytest.approx(statistics.mean(shares), rel=1e-5)
    assert 0.6 < found.agreement < 0.95
    assert found.agreement_error == pytest.approx(statistics.stdev(shares) / 40**0.5, rel=1e-4)


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_agreement_of_unrelated_views_is_one_half_whatever_they_share(shift):
    z = torch.randn(2, 512, 16, generator=generator()) + shift
    found = measured(z, torch.randn(8, 16, generator=generator()), blocks(8, 4))
    assert found.agreement == pytest.approx(0.5, abs=3 * found.agreement_error)
    assert 0.005 < found.agreement_error < 0.02


def test_agreement_of_equal_views_is_one_and_of_equal_images_one_half():
    c = torch.randn(8, 16, generator=generator())
    view = torch.randn(1, 64, 16, generator=generator())
    assert measured(view.repeat(2, 1, 1), c, blocks(8, 4)).agreement == 1.0
    assert measured(torch.ones(2, 64, 16), c, blocks(8, 4)).agreement == 0.5


def test_agreement_of_a_huge_batch_is_measured_on_a_part_of_it():
    z = torch.randn(1, 1030, 4, generator=generator()).repeat(2, 1, 1)
    z[1, 1024:] *= -1  # these would disagree
    assert measured(z, torch.eye(4), blocks(4, 4)).agreement == 1.0


# Verdicts


STILL = replace(LEARNING, gain=0.1, weight_change=2e-5)
LOST = replace(LEARNING, gain=-1.0)
FAR = replace(LEARNING, gain=-1.0, weight_change=30.0)  # "30.0 times their norm"

# Measurements, progress, verdict, words of the cause, the first setting that the remedy names
CASES = {
    "one prototype takes all": (replace(WELL, imbalance=0.9), LEARNING, "collapsed", "90% of its", "entropy_weight"),
    "one direction": (replace(WELL, spread=0.02), LEARNING, "collapsed", "same direction", "entropy_weight"),
    "on a line": (replace(WELL, effective_rank=1.6), LEARNING, "collapsed", "1.6 of 128 dimensions", "entropy_weight"),
    "collapsed by large steps": (replace(WELL, spread=0.02), FAR, "collapsed", "same direction", "lr"),
    "imbalance": (replace(WELL, imbalance=0.5), LEARNING, "at risk", "50% of ln N_B", "entropy_weight"),
    "few used": (replace(WELL, prototypes_used=0.1), LEARNING, "at risk", "only 10% of the", "entropy_weight"),
    "twins": (replace(WELL, duplicate_prototypes=0.4), LEARNING, "at risk", "40% of the prototypes", "num_prototypes"),
    "low rank": (replace(WELL, effective_rank=2.5), LEARNING, "at risk", "2.5 of 128 dimensions", "entropy_weight"),
    "views alike": (
        replace(WELL, agreement=1.0, effective_rank=67.0),
        replace(LEARNING, start=replace(START, agreement=0.995, effective_rank=56.0)),
        "at risk", "views of an image hardly differ", "global_scale",
    ),
    "two steps": (WELL, replace(LEARNING, steps=2), "too early to tell", "2 steps are done", "epochs"),
    "few steps, no gain": (START, replace(LOST, steps=60), "too early to tell", "60 steps are done", "epochs"),
    "steps too small": (START, STILL, "not learning", "only 0.002% of their norm in 200 steps", "lr"),
    "steps too large": (replace(START, agreement=0.5), FAR, "not learning", "50% of cases", "lr"),
    "nothing to recognise": (replace(START, agreement=0.51), LOST, "not learning", "By chance it is 50%", "epochs"),
    "small batch": (replace(START, full_rank=3), LOST, "not learning", "60% of cases", "batch_size"),
    "uniform": (replace(START, uncertainty=0.99, imbalance=0.01), LOST, "not learning", "uniform", "entropy_weight"),
    "no gain": (START, LOST, "not learning", "60% of cases, 60% at the start", "epochs"),
    "older run that stands still": (WELL, replace(STILL, start=None), "not learning", "0.002% of their norm", "lr"),
    "labels say no": (
        WELL, replace(LEARNING, knn=Knn(0.148, 0.160, 0.2)), "not learning", "16.0% (raw pixels 20.0%)", "epochs",
    ),
    "below raw pixels": (
        WELL, replace(LEARNING, knn=Knn(0.313, 0.2, 0.45)), "below raw pixels", "31.3%, untrained 20.0%", "epochs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_each_case_has_its_verdict_cause_and_remedy(case):
    health, progress, verdict, cause, setting = CASES[case]
    found = diagnose(health, progress)
    assert found.verdict == verdict
    assert cause in found.cause
    words = re.findall(r"[a-z]+(?:_[a-z]+)*", found.remedy)
    named = [word for word in words if word in Config.model_fields]
    assert named[0] == setting
    assert all(word in Config.model_fields for word in words if "_" in word)
    assert str(found) == f"{verdict}: {found.cause} {found.remedy}"


def test_a_run_that_is_well_is_healthy_and_has_nothing_to_change():
    for progress in (LEARNING, replace(LEARNING, knn=Knn(0.5, 0.2, 0.45))):
        found = diagnose(WELL, progress)
        assert found.verdict is Verdict.HEALTHY
        assert found.remedy == ""
        assert str(found) == f"healthy: {found.cause}"
        assert "85%" in found.cause
        assert "60% at the start" in found.cause


def test_progress_needs_fewer_steps_to_be_seen_than_the_lack_of_it():
    assert diagnose(WELL, replace(LEARNING, steps=30)).verdict is Verdict.HEALTHY
    assert diagnose(START, replace(LOST, steps=30)).verdict is Verdict.TOO_EARLY


def test_images_that_differ_in_more_ways_are_a_gain_where_views_agree_from_the_start():
    start, progress = replace(START, agreement=1.0), replace(LEARNING, gain=0.0)
    now = replace(WELL, agreement=1.0, effective_rank=67.0)
    assert diagnose(now, replace(progress, start=replace(start, effective_rank=56.0))).verdict is Verdict.AT_RISK
    assert diagnose(now, replace(progress, start=replace(start, effective_rank=66.0))).verdict is Verdict.NOT_LEARNING
    lost = replace(progress, start=replace(start, effective_rank=56.0), gain=-5.0)
    assert diagnose(now, lost).verdict is Verdict.NOT_LEARNING
    by_chance = replace(progress, start=replace(START, agreement=0.44, effective_rank=35.0), gain=1.1)
    assert diagnose(replace(now, agreement=0.48, effective_rank=40.0), by_chance).verdict is Verdict.NOT_LEARNING


def test_a_few_images_show_a_gain_only_with_assignments_that_grow_certain():
    few = replace(WELL, full_rank=3, effective_rank=2.9)
    assert diagnose(few, LEARNING).verdict is Verdict.HEALTHY
    found = diagnose(replace(few, uncertainty=0.95), LEARNING)
    assert found.verdict is Verdict.NOT_LEARNING
    assert "batch_size" in found.remedy


def test_collapse_outranks_every_other_verdict():
    worst = replace(WELL, uncertainty=0.99, imbalance=0.9, prototypes_used=0.0, effective_rank=1.0)
    for progress in (LEARNING, STILL, replace(LOST, steps=2), replace(LOST, knn=Knn(0.1, 0.2, 0.3))):
        assert diagnose(worst, progress).verdict is Verdict.COLLAPSED


def test_few_prototypes_used_is_judged_against_what_the_batch_could_use():
    few_images = replace(WELL, prototypes_used=0.02, prototypes_used_if_even=0.03)
    assert diagnose(few_images, LEARNING).verdict is Verdict.HEALTHY


def test_a_run_that_an_older_version_began_is_not_blamed_for_a_start_that_is_not_known():
    found = diagnose(WELL, replace(LEARNING, start=None, gain=0.0))
    assert found.verdict is Verdict.HEALTHY
    assert "start" not in found.cause


def test_a_diagnosis_reads_as_one_line():
    assert str(Diagnosis(Verdict.AT_RISK, "cause.", "Do this.")) == "at risk: cause. Do this."


# From embeddings to the verdict


def verdict_of(z, prototypes, partition):
    terms = carp_loss(z, z, prototypes, prototypes, partition)
    found = measure(float(terms.consistency) / 2, float(terms.kl_to_uniform), z, prototypes, partition)
    return diagnose(found, LEARNING)


def unit(num_prototypes, dim):
    return torch.nn.functional.normalize(torch.randn(num_prototypes, dim, generator=generator(9)), dim=-1)


def test_embeddings_spread_over_the_sphere_with_certain_assignments_are_healthy():
    z = torch.randn(1, 256, 32, generator=generator()).repeat(2, 1, 1) * 20
    assert verdict_of(z, unit(64, 32), blocks(64, 8)).verdict is Verdict.HEALTHY


def test_equal_long_embeddings_have_collapsed_onto_one_prototype():
    z = torch.randn(1, 1, 32, generator=generator()).expand(2, 256, 32) * 100
    found = verdict_of(z, unit(64, 32), blocks(64, 8))
    assert found.verdict is Verdict.COLLAPSED
    assert "same prototype" in found.cause


def test_equal_short_embeddings_have_collapsed_onto_one_direction():
    z = torch.randn(1, 1, 32, generator=generator()).expand(2, 256, 32) * 0.1
    found = verdict_of(z, unit(64, 32), blocks(64, 8))
    assert found.verdict is Verdict.COLLAPSED
    assert "same direction" in found.cause


def test_embeddings_on_a_line_are_at_risk():
    z = torch.randn(1, 256, 1, generator=generator()).repeat(2, 1, 1) * torch.randn(32, generator=generator(3)) * 20
    assert verdict_of(z, unit(64, 32), blocks(64, 2)).verdict is Verdict.AT_RISK


def test_certainty_of_student_and_teacher_is_measured_and_changes_no_verdict():
    z, c = torch.randn(2, 16, 8, generator=generator()), torch.randn(64, 8, generator=generator(1))
    found = measure(1.0, 0.1, z, c, blocks(64, 8), (100 * z, c))
    assert 1 / 8 < found.certainty < found.teacher_certainty <= 1
    assert 1 > found.entropy > found.teacher_entropy >= 0
    alone = measure(1.0, 0.1, z, c, blocks(64, 8))
    assert (alone.teacher_certainty, alone.teacher_entropy) == (None, None)
    assert replace(alone, teacher_certainty=found.teacher_certainty, teacher_entropy=found.teacher_entropy) == found
    assert diagnose(replace(WELL, certainty=0.1, entropy=0.9), LEARNING) == diagnose(WELL, LEARNING)


# Worse than the start


def compared(now, start=0.467, best=None, step=0):
    return Comparison("k-NN", now, start, best=best or max(now, start), best_step=step)


@pytest.mark.parametrize("measure", ["k-NN", "recognition of views of held-out images"])
def test_a_run_that_falls_behind_its_start_is_worse(measure):
    progress = replace(LEARNING, comparison=replace(compared(0.395), measure=measure))
    found = diagnose(WELL, progress)
    assert found.verdict is Verdict.WORSE
    assert measure in found.cause
    assert "39.5%" in found.cause
    assert "46.7%" in found.cause
    assert "lr" in found.remedy
    assert "the start itself" in found.remedy
    later = diagnose(WELL, replace(LEARNING, comparison=compared(0.395, best=0.5, step=120)))
    assert "step 120" in later.remedy


def test_a_run_at_or_above_its_start_is_not_worse():
    for now in (0.9, 0.467, 0.465):  # the last is within the noise
        assert diagnose(WELL, replace(LEARNING, comparison=compared(now))).verdict is Verdict.HEALTHY


def test_few_steps_are_enough_to_be_worse_and_a_collapse_comes_first():
    assert diagnose(WELL, replace(LEARNING, steps=3, comparison=compared(0.2))).verdict is Verdict.WORSE
    assert diagnose(replace(WELL, imbalance=0.95), replace(LEARNING, comparison=compared(0.2))).verdict is (
        Verdict.COLLAPSED
    )


def test_large_steps_are_named_as_the_reason_to_be_worse():
    progress = replace(LEARNING, weight_change=2.0, comparison=compared(0.2))
    assert "too large" in diagnose(WELL, progress).remedy
