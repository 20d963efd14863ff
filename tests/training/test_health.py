"""Health of a run: measurements of synthetic embeddings, and every verdict with its cause and a setting to change."""

import math
import re
from dataclasses import replace

import pytest
import torch

from carp.config import Config
from carp.model.loss import carp_loss
from carp.training.health import Diagnosis, Health, Verdict, diagnose, measure

WELL = Health(
    uncertainty=0.3,
    imbalance=0.05,
    prototypes_used=0.8,
    prototypes_used_if_even=0.9,
    duplicate_prototypes=0.0,
    effective_rank=60.0,
    full_rank=128,
    spread=0.95,
)


def measured(z, prototypes, partition, consistency=1.0, kl=0.1):
    return measure(consistency, kl, z, prototypes, partition)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def blocks(num_prototypes, block_size):
    return torch.arange(num_prototypes).view(-1, block_size)


# Measurements


@pytest.mark.parametrize("block", [1, 2, 8, 64])
def test_uncertainty_and_imbalance_are_one_at_their_limits(block):
    z, c = torch.randn(2, 16, 8, generator=generator()), torch.randn(64, 8, generator=generator(1))
    limit = math.log(max(2, block))
    found = measured(z, c, blocks(64, block), consistency=2 * limit, kl=limit)
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


# Verdicts


CASES = {
    "one prototype takes all": (replace(WELL, imbalance=0.9), Verdict.COLLAPSED, "90% of its limit"),
    "one direction": (replace(WELL, spread=0.02), Verdict.COLLAPSED, "point the same way"),
    "uniform": (replace(WELL, uncertainty=0.99, imbalance=0.01), Verdict.NOT_YET_LEARNING, "still uniform"),
    "imbalance": (replace(WELL, imbalance=0.5), Verdict.AT_RISK, "50% of ln N_B"),
    "few used": (replace(WELL, prototypes_used=0.1), Verdict.AT_RISK, "only 10% of the prototypes"),
    "twins": (replace(WELL, duplicate_prototypes=0.4), Verdict.AT_RISK, "40% of the prototypes have a twin"),
    "on a line": (replace(WELL, effective_rank=1.6), Verdict.COLLAPSED, "on a line: they use 1.6 of 128 dimensions"),
    "low rank": (replace(WELL, effective_rank=2.5), Verdict.AT_RISK, "2.5 of 128 dimensions"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_each_cause_has_its_verdict(case):
    health, verdict, cause = CASES[case]
    found = diagnose(health)
    assert found.verdict is verdict
    assert cause in found.cause


@pytest.mark.parametrize("case", list(CASES))
def test_each_remedy_names_a_setting_that_exists(case):
    health, verdict, _ = CASES[case]
    found = diagnose(health)
    words = re.findall(r"[a-z]+(?:_[a-z]+)*", found.remedy)
    named = [word for word in words if word in Config.model_fields]
    assert named
    assert all(word in Config.model_fields for word in words if "_" in word)
    assert str(found) == f"{verdict.value}: {found.cause} {found.remedy}"


def test_a_run_that_is_well_is_healthy_and_has_nothing_to_change():
    found = diagnose(WELL)
    assert found.verdict is Verdict.HEALTHY
    assert found.remedy == ""
    assert str(found) == f"healthy: {found.cause}"


def test_collapse_outranks_every_other_verdict():
    worst = replace(WELL, uncertainty=0.99, imbalance=0.9, prototypes_used=0.0, effective_rank=1.0)
    assert diagnose(worst).verdict is Verdict.COLLAPSED


def test_few_prototypes_used_is_judged_against_what_the_batch_could_use():
    few_images = replace(WELL, prototypes_used=0.02, prototypes_used_if_even=0.03)
    assert diagnose(few_images).verdict is Verdict.HEALTHY


def test_a_diagnosis_reads_as_one_line():
    assert str(Diagnosis(Verdict.AT_RISK, "cause.", "Do this.")) == "at risk: cause. Do this."


# From embeddings to the verdict


def verdict_of(z, prototypes, partition):
    terms = carp_loss(z, z, prototypes, prototypes, partition)
    return diagnose(measure(float(terms.consistency), float(terms.kl_to_uniform), z, prototypes, partition))


def unit(num_prototypes, dim):
    return torch.nn.functional.normalize(torch.randn(num_prototypes, dim, generator=generator(9)), dim=-1)


def test_embeddings_spread_over_the_sphere_with_certain_assignments_are_healthy():
    z = torch.randn(1, 256, 32, generator=generator()).repeat(2, 1, 1) * 20
    assert verdict_of(z, unit(64, 32), blocks(64, 8)).verdict is Verdict.HEALTHY


def test_embeddings_near_zero_are_not_yet_learning():
    z = torch.randn(2, 256, 32, generator=generator()) * 0.01
    assert verdict_of(z, unit(64, 32), blocks(64, 8)).verdict is Verdict.NOT_YET_LEARNING


def test_equal_long_embeddings_have_collapsed_onto_one_prototype():
    z = torch.randn(1, 1, 32, generator=generator()).expand(2, 256, 32) * 100
    found = verdict_of(z, unit(64, 32), blocks(64, 8))
    assert found.verdict is Verdict.COLLAPSED
    assert "same prototype" in found.cause


def test_equal_short_embeddings_have_collapsed_onto_one_direction():
    z = torch.randn(1, 1, 32, generator=generator()).expand(2, 256, 32) * 0.1
    found = verdict_of(z, unit(64, 32), blocks(64, 8))
    assert found.verdict is Verdict.COLLAPSED
    assert "same way" in found.cause


def test_embeddings_on_a_line_are_at_risk():
    z = torch.randn(1, 256, 1, generator=generator()).repeat(2, 1, 1) * torch.randn(32, generator=generator(3)) * 20
    assert verdict_of(z, unit(64, 32), blocks(64, 2)).verdict is Verdict.AT_RISK
