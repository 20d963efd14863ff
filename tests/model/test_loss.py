"""`carp_loss` and `reference_loss` against the paper's equations in NumPy loops, and their properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carp import carp_loss, random_partition, reference_loss
from carp.errors import ModelError
from tests.reference import carp_numpy

LOSSES = [carp_loss, reference_loss]
both = pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
TERMS = ("total", "consistency", "kl_to_uniform")


def problem(seed=0, views=2, images=5, dim=4, prototypes=12, block=4, spread=2.0, dtype=torch.float64):
    """z, w, prototypes, teacher_prototypes, partition with logits of a few units."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * spread).to(dtype)

    return (
        normal(views, images, dim),
        normal(2, images, dim),
        normal(prototypes, dim) / spread,
        normal(prototypes, dim) / spread,
        random_partition(prototypes, block, generator=g),
    )


def loops(arguments, entropy_weight=1.0):
    *tensors, partition = arguments
    return carp_numpy.loss(*(tensor.double().numpy() for tensor in tensors), partition.numpy(), entropy_weight)


def numbers(terms):
    return [float(value) for value in terms]


problems = st.builds(
    problem,
    seed=st.integers(0, 2**31),
    views=st.sampled_from([2, 3, 5]),
    images=st.integers(1, 6),
    dim=st.integers(1, 5),
    prototypes=st.just(12),
    block=st.sampled_from([1, 2, 3, 4, 6, 12]),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
)
few = settings(max_examples=40, deadline=None)


# Against the loops


@both
@pytest.mark.parametrize("views", [2, 8])
@pytest.mark.parametrize("block", [1, 4, 12], ids=["N_B=1", "N_B=4", "N_B=K"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_every_term_equals_the_loops_in_float64(loss, views, block, weight):
    arguments = problem(seed=views + block, views=views, block=block)
    found = loss(*arguments, entropy_weight=weight)
    for name, ours, theirs in zip(TERMS, numbers(found), loops(arguments, weight), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-10, abs=1e-10), name


@both
@pytest.mark.parametrize("views", [2, 8])
@pytest.mark.parametrize("block", [1, 4, 12], ids=["N_B=1", "N_B=4", "N_B=K"])
def test_every_term_equals_the_loops_in_float32(loss, views, block):
    arguments = problem(seed=views + block, views=views, block=block, dtype=torch.float32)
    found = loss(*arguments)
    assert found.total.dtype == torch.float32
    for name, ours, theirs in zip(TERMS, numbers(found), loops(arguments), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5), name


@both
@pytest.mark.parametrize("views", [2, 5])
def test_the_mean_over_pairs_is_half_of_their_sum(loss, views):
    arguments = problem(seed=views, views=views)
    _, consistency, kl = loops(arguments)
    found = loss(*arguments, entropy_weight=0.7, pairs="mean")
    assert numbers(found) == pytest.approx([consistency / 2 + 0.7 * kl, consistency / 2, kl], rel=1e-10)


@both
@pytest.mark.parametrize("spread", [2.0, 2000.0], ids=["plain", "log space"])
def test_the_gradient_of_the_mean_over_pairs_is_half_of_that_of_the_sum(loss, spread):
    if loss is reference_loss and spread > 100:
        pytest.skip("the pseudo-code has no gradient where the product underflows")
    z, *rest = problem(seed=3, views=4, spread=spread)
    z.requires_grad_()
    (half,) = torch.autograd.grad(loss(z, *rest, entropy_weight=1.5, pairs="mean").total, z)
    (whole,) = torch.autograd.grad(loss(z, *rest, entropy_weight=3.0).total, z)
    torch.testing.assert_close(half, whole / 2, rtol=1e-10, atol=1e-14)


@both
def test_words_other_than_the_known_ones_are_refused(loss):
    with pytest.raises(ModelError, match="pairs must be sum or mean, received 'both'"):
        loss(*problem(), pairs="both")
    with pytest.raises(ModelError, match="uniformity must be entropy or collision, received 'none'"):
        loss(*problem(), uniformity="none")


@both
@pytest.mark.parametrize("images", [1, 2, 6])
@pytest.mark.parametrize("views", [2, 5])
@pytest.mark.parametrize("block", [1, 4, 12], ids=["N_B=1", "N_B=4", "N_B=K"])
def test_the_collision_equals_the_loops(loss, images, views, block):
    *tensors, partition = arguments = problem(seed=images + views, images=images, views=views, block=block)
    z, w, c, t = (tensor.numpy() for tensor in tensors)
    s, t = (carp_numpy.assignments(x, y, partition.numpy()) for x, y in ((z, c), (w, t)))
    _, consistency, kl = loops(arguments)
    found = loss(*arguments, entropy_weight=0.7, uniformity="collision")
    expected = [consistency + 0.7 * carp_numpy.collision(s, t), consistency, kl]
    assert numbers(found) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_the_collision_of_independent_images_has_no_bias_and_the_entropy_has_one():
    """Certain assignments, each prototype equally likely, fewer images than prototypes."""
    generator, relative, divergence = torch.Generator().manual_seed(0), [], []
    for _ in range(400):
        z = torch.nn.functional.one_hot(torch.randint(8, (6,), generator=generator), 8).double().mul(1000)
        z = z.expand(2, 6, 8)
        arguments = z, z, *[torch.eye(8, dtype=torch.float64)] * 2, torch.arange(8)[None]
        with_collision = carp_loss(*arguments, uniformity="collision")
        relative.append(math.exp(float(with_collision.total - with_collision.consistency)))
        divergence.append(float(with_collision.kl_to_uniform))
    assert sum(relative) / 400 == pytest.approx(1, abs=0.15)
    assert sum(divergence) / 400 > 0.4  # about (N − 1) / 2B


def test_images_without_any_collision_have_a_finite_gradient():
    z = (1000 * torch.eye(4)[None]).repeat(2, 1, 1).requires_grad_()
    found = carp_loss(z, z.detach(), *[torch.eye(4)] * 2, torch.arange(4)[None], uniformity="collision")
    found.total.backward()
    assert math.isfinite(found.total.item())
    assert bool(torch.isfinite(z.grad).all())


def test_two_views_sum_both_directions_of_hand_computed_numbers():
    # One image, two prototypes on the axes: logits are the embeddings themselves.
    half, third = [math.log(1.0), math.log(1.0)], [math.log(1.0), math.log(2.0)]
    z = torch.tensor([[half], [third]], dtype=torch.float64)
    w = torch.tensor([[third], [half]], dtype=torch.float64)
    axes = torch.eye(2, dtype=torch.float64)
    found = carp_loss(z, w, axes, axes, torch.tensor([[0, 1]]))
    # s1 = t2 = (1/2, 1/2), s2 = t1 = (1/3, 2/3): ⟨s1, t2⟩ = 1/2, ⟨s2, t1⟩ = 5/9.
    assert float(found.consistency) == pytest.approx(math.log(2) + math.log(9 / 5), rel=1e-12)
    # The mean of (1/2, 1/2) twice and (1/3, 2/3) twice is (5/12, 7/12).
    kl = math.log(2) + 5 / 12 * math.log(5 / 12) + 7 / 12 * math.log(7 / 12)
    assert float(found.kl_to_uniform) == pytest.approx(kl, rel=1e-10)


def test_uniform_assignments_cost_twice_the_logarithm_of_the_block_and_no_uniformity():
    z, w, c, t, _ = problem()
    for block in (1, 3, 12):
        found = carp_loss(z * 0, w * 0, c, t, random_partition(12, block))
        assert float(found.consistency) == pytest.approx(2 * math.log(max(2, block)), rel=1e-12)
        assert float(found.kl_to_uniform) == pytest.approx(0, abs=1e-12)


# Gradients


@both
@pytest.mark.parametrize(("views", "block"), [(2, 3), (4, 1), (3, 6)])
def test_gradients_of_embeddings_and_prototypes_equal_finite_differences(loss, views, block):
    z, w, c, t, partition = problem(seed=3, views=views, images=3, dim=2, prototypes=6, block=block, spread=1.0)
    z.requires_grad_()
    c.requires_grad_()
    assert torch.autograd.gradcheck(lambda z, c: loss(z, w, c, t, partition, entropy_weight=0.7).total, (z, c))


def test_gradients_of_carp_loss_equal_those_of_the_pseudo_code():
    gradients = []
    for loss in LOSSES:
        z, w, c, t, partition = problem(seed=5, views=8, images=6, dim=5, prototypes=24, block=6)
        z.requires_grad_()
        c.requires_grad_()
        loss(z, w, c, t, partition, entropy_weight=1.3).total.backward()
        gradients.append((z.grad, c.grad))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@both
def test_no_gradient_reaches_the_teacher(loss):
    z, w, c, t, partition = problem()
    for tensor in (z, w, c, t):
        tensor.requires_grad_()
    loss(z, w, c, t, partition).total.backward()
    assert w.grad is None
    assert t.grad is None
    assert float(z.grad.abs().sum()) > 0
    assert float(c.grad.abs().sum()) > 0


@both
def test_gradient_flows_into_every_view_of_a_list(loss):
    z, w, c, t, partition = problem(views=4)
    views = [view.clone().requires_grad_() for view in z]
    loss(views, list(w), c, t, partition).total.backward()
    assert all(float(view.grad.abs().sum()) > 0 for view in views)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_logits_of_ten_thousand_stay_finite_with_a_live_gradient(block, dtype):
    # Student and teacher are certain and disagree: ⟨s, t⟩ underflows, and clamping it would kill the gradient.
    c = torch.eye(4, dtype=dtype)
    z = torch.full((2, 1, 4), -1e4, dtype=dtype)
    z[..., 0] = 1e4
    w = torch.full((2, 1, 4), -1e4, dtype=dtype)
    w[..., 1] = 1e4
    z.requires_grad_()
    found = carp_loss(z, w, c, c, torch.arange(4).view(-1, block))
    found.total.backward()
    # Both directions cost 2e4 − ln 2 in the block of prototypes 0 and 1. Blocks of two: the other block is uniform
    # and costs ln 2. Blocks of one: prototypes 0 and 1 cost 1e4 − ln 2 each, the other two agree and cost nothing.
    log2 = math.log(2)
    expected = {4: 2 * (2e4 - log2), 2: 2 * (2e4 - log2 + log2) / 2, 1: 2 * 2 * (1e4 - log2) / 4}[block]
    assert float(found.consistency.detach()) == pytest.approx(expected, rel=1e-7)
    assert bool(torch.isfinite(z.grad).all())
    assert float(z.grad.abs().max()) > 0.1 / 4


@pytest.mark.parametrize("block", [1, 4])
def test_a_prototype_that_no_view_takes_leaves_the_gradient_finite(block):
    # A collapsed batch: p̄ of the other prototypes underflows to exactly 0, where the derivative of p ln p is infinite.
    c = torch.eye(4)
    z = torch.zeros(2, 3, 4)
    z[..., 0] = 500.0
    z[..., 1:] = -500.0
    w = z.clone()
    z.requires_grad_()
    c.requires_grad_()
    found = carp_loss(z, w, c, c.detach(), torch.arange(4).view(-1, block))
    found.total.backward()
    assert float(found.kl_to_uniform.detach()) == pytest.approx(math.log(max(2, block)), rel=1e-6)
    assert bool(torch.isfinite(z.grad).all())
    assert bool(torch.isfinite(c.grad).all())


def test_gradient_of_the_consistency_on_a_logit_is_bounded_however_large_the_logits():
    z, w, _, t, partition = problem(seed=2, spread=1e3)
    z.requires_grad_()
    carp_loss(
        z, w, torch.eye(4, dtype=torch.float64).repeat(3, 1), t * 1e3, partition, entropy_weight=0.0
    ).total.backward()
    # |s − r| <= 1 in every entry; each logit of a view is in one pair, 1 / (B · P) of the mean.
    assert float(z.grad.abs().max()) <= 3 * 1.0 / (5 * 3) + 1e-12
    assert float(z.grad.abs().max()) > 0


# What goes in


@both
def test_a_list_a_tuple_and_a_stacked_tensor_are_the_same_input(loss):
    z, w, c, t, partition = problem(views=3)
    stacked = loss(z, w, c, t, partition)
    for kind in (list, tuple):
        assert numbers(loss(kind(z), kind(w), c, t, partition)) == numbers(stacked)


def test_entropy_weight_may_be_a_tensor():
    arguments = problem()
    by_tensor = carp_loss(*arguments, entropy_weight=torch.tensor(0.25, dtype=torch.float64))
    assert numbers(by_tensor) == numbers(carp_loss(*arguments, entropy_weight=0.25))


def broken():
    z, w, c, t, partition = problem()
    return {
        "one view": ((z[:1], w, c, t, partition), "z must"),
        "one view in a list": (([z[0]], w, c, t, partition), "z must"),
        "no view": (([], w, c, t, partition), "z must"),
        "a matrix for z": ((z[0], w, c, t, partition), "z must"),
        "views of different batches": (([z[0], z[1, :3]], w, c, t, partition), "views in z"),
        "teacher of another batch": ((z, w[:, :3], c, t, partition), "w must"),
        "teacher with three views": ((z, torch.cat([w, w[:1]]), c, t, partition), "w must"),
        "teacher with one view": ((z, w[:1], c, t, partition), "w must"),
        "prototypes of another dimension": ((z, w, c[:, :3], t, partition), "prototypes must"),
        "teacher prototypes of another number": ((z, w, c, t[:6], partition), "teacher_prototypes must"),
        "partition of too few": ((z, w, c, t, partition[:2]), "partition must"),
        "partition of floats": ((z, w, c, t, partition.double()), "partition must"),
        "partition of int32": ((z, w, c, t, partition.int()), "partition must"),
        "flat partition": ((z, w, c, t, partition.flatten()), "partition must"),
        "partition with an index too large": ((z, w, c, t, partition + 1), "indices from 0 to 11, received 12"),
        "partition with a negative index": ((z, w, c, t, partition - 1), "indices from 0 to 11, received -1"),
        "partition with a repeated index": ((z, w, c, t, partition.clamp_min(1)), "1 are repeated .first 1"),
        "no images": ((z[:, :0], w[:, :0], c, t, partition), "at least one image"),
        "whole numbers": ((z.long(), w, c, t, partition), "z must contain floating-point"),
        "double and single precision": ((z.float(), w, c, t, partition), "float64 must be used for all"),
        "prototypes on another device": ((z, w, c.to("meta"), t, partition), "prototypes must be on the device of z"),
        "partition on another device": ((z, w, c, t, partition.to("meta")), "partition must be on the device of z"),
    }


@both
@pytest.mark.parametrize("case", list(broken()))
def test_wrong_shapes_are_model_errors_that_name_the_tensor_and_what_was_received(loss, case):
    arguments, message = broken()[case]
    with pytest.raises(ModelError, match=message) as caught:
        loss(*arguments)
    assert "received" in str(caught.value) or "repeated" in str(caught.value)


def test_a_repetition_that_keeps_the_sum_is_found_in_debug_mode(monkeypatch):
    z, w, c, t, _ = problem()
    wrong = torch.tensor([[0, 0, 3, 3], [4, 5, 6, 7], [8, 9, 10, 11]])  # 0 + 3 instead of 1 + 2
    carp_loss(z, w, c, t, wrong)
    monkeypatch.setenv("CARP_DEBUG", "1")
    with pytest.raises(ModelError, match=r"2 are repeated .first 0.*2 missing .first 1"):
        carp_loss(z, w, c, t, wrong)
    carp_loss(z, w, c, t, wrong.new_tensor(range(12)).view(3, 4))


def test_a_chunk_of_no_blocks_is_refused():
    with pytest.raises(ModelError, match="chunk must be at least 1 block, received 0"):
        carp_loss(*problem(), chunk=0)


# Properties


@few
@given(seed=st.integers(0, 2**31), images=st.integers(1, 5), weight=st.floats(0, 3))
def test_a_single_block_is_the_unpartitioned_equation(seed, images, weight):
    z, w, c, t, _ = problem(seed=seed, images=images, prototypes=7, block=7)
    paper = carp_numpy.unpartitioned_loss(z.numpy(), w.numpy(), c.numpy(), t.numpy(), weight)
    for loss in LOSSES:
        total = loss(z, w, c, t, random_partition(7, 7), entropy_weight=weight).total
        # log N_B is what turns −H into a divergence
        assert float(total) - weight * math.log(7) == pytest.approx(paper, rel=1e-10, abs=1e-10)


@few
@given(arguments=problems, seed=st.integers(0, 2**31))
def test_order_inside_blocks_and_of_blocks_changes_nothing(arguments, seed):
    *tensors, partition = arguments
    g = torch.Generator().manual_seed(seed)
    P, N = partition.shape
    inside = torch.stack([row[torch.randperm(N, generator=g)] for row in partition])
    shuffled = inside[torch.randperm(P, generator=g)]
    for loss in LOSSES:
        before, after = loss(*tensors, partition), loss(*tensors, shuffled)
        assert numbers(after) == pytest.approx(numbers(before), rel=1e-11, abs=1e-11)


@few
@given(arguments=problems, seed=st.integers(0, 2**31))
def test_renaming_the_prototypes_changes_nothing(arguments, seed):
    z, w, c, t, partition = arguments
    order = torch.randperm(len(c), generator=torch.Generator().manual_seed(seed))
    renamed = torch.argsort(order)[partition]
    before, after = carp_loss(*arguments), carp_loss(z, w, c[order], t[order], renamed)
    assert numbers(after) == pytest.approx(numbers(before), rel=1e-11, abs=1e-11)


@few
@given(arguments=problems)
def test_consistency_is_not_negative_and_the_divergence_lies_between_its_limits(arguments):
    limit = math.log(max(2, arguments[-1].shape[1]))
    for loss in LOSSES:
        found = loss(*arguments)
        assert float(found.consistency) >= -1e-12
        assert -1e-12 <= float(found.kl_to_uniform) <= limit + 1e-12


@few
@given(arguments=problems)
def test_swapping_the_two_global_views_of_both_branches_changes_nothing(arguments):
    z, w, c, t, partition = arguments
    swapped = torch.cat([z[[1, 0]], z[2:]])
    for loss in LOSSES:
        before, after = loss(*arguments), loss(swapped, w.flip(0), c, t, partition)
        assert numbers(after) == pytest.approx(numbers(before), rel=1e-11, abs=1e-11)


@few
@given(arguments=problems, weight=st.floats(0, 10))
def test_total_is_consistency_plus_weight_times_divergence(arguments, weight):
    for loss in LOSSES:
        total, consistency, kl = numbers(loss(*arguments, entropy_weight=weight))
        assert total == pytest.approx(consistency + weight * kl, rel=1e-12, abs=1e-12)


@few
@given(arguments=problems)
def test_carp_loss_equals_the_pseudo_code(arguments):
    assert numbers(carp_loss(*arguments)) == pytest.approx(numbers(reference_loss(*arguments)), rel=1e-9, abs=1e-9)


def test_one_prototype_that_takes_all_is_at_the_upper_limit():
    z, w, _, _, _ = problem(block=4)
    one_way = torch.zeros(12, 4, dtype=torch.float64)
    one_way[::4, 0] = 1.0
    z, w = torch.zeros_like(z), torch.zeros_like(w)
    z[..., 0] = w[..., 0] = 100.0
    found = carp_loss(z, w, one_way, one_way, torch.arange(12).view(3, 4))
    assert float(found.kl_to_uniform) == pytest.approx(math.log(4), rel=1e-12)
    assert float(found.consistency) == pytest.approx(0, abs=1e-12)


def test_loops_and_vectorised_mean_agree_that_teacher_views_weigh_as_much_as_student_views():
    # Two global student views certain of prototype 0, two teacher views of prototype 1: p̄ = (1/2, 1/2).
    axes = np.eye(2) * 100
    z = torch.tensor(np.stack([axes[:1], axes[:1]]))
    w = torch.tensor(np.stack([axes[1:], axes[1:]]))
    found = carp_loss(z, w, torch.eye(2).double(), torch.eye(2).double(), torch.tensor([[0, 1]]))
    assert float(found.kl_to_uniform) == pytest.approx(0, abs=1e-12)
    assert float(found.consistency) == pytest.approx(2 * (100 - math.log(2)), rel=1e-12)
