"""The walk over the partition equals the reference, whatever the sizes and the chunk, in values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carp import carp_loss, random_partition, reference_loss


def problem(views=2, images=5, embedding=4, blocks=3, block_size=4, *, dtype=torch.float64, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return (spread * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    num_prototypes = blocks * block_size
    z, c = draw(views, images, embedding).requires_grad_(), draw(num_prototypes, embedding).requires_grad_()
    partition = random_partition(num_prototypes, block_size, generator=generator)
    return z, draw(2, images, embedding), c, draw(num_prototypes, embedding), partition


def gradients(loss, arguments, **options):
    terms = loss(*arguments, entropy_weight=3.0, **options)
    return [t.detach() for t in terms], torch.autograd.grad(terms.total, (arguments[0], arguments[2]))


def assert_equal(ours, theirs, tolerance):
    """Relative to the scale of each: ln 2 at least for the terms (their limit), the largest entry for gradients."""
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert abs(float(mine - other)) <= tolerance * max(abs(float(other)), 0.69)
    for mine, other in zip(ours[1], theirs[1], strict=True):
        assert float((mine - other).abs().max()) <= tolerance * (float(other.abs().max()) + 1e-2)


sizes = {
    "views": st.integers(2, 5),
    "images": st.integers(1, 9),
    "embedding": st.integers(1, 8),
    "blocks": st.integers(1, 6),
    "block_size": st.integers(1, 9),
    "seed": st.integers(0, 10**6),
}


@settings(max_examples=80, deadline=None)
@given(
    chunk=st.one_of(st.none(), st.integers(1, 7)),
    spread=st.floats(0.01, 3.0),
    uniformity=st.sampled_from(["entropy", "collision"]),
    **sizes,
)
def test_values_and_gradients_equal_the_reference_in_float64(chunk, spread, uniformity, **shape):
    arguments = problem(**shape, spread=spread)
    ours = gradients(carp_loss, arguments, chunk=chunk, uniformity=uniformity)
    assert_equal(ours, gradients(reference_loss, arguments, uniformity=uniformity), 1e-10)


@settings(max_examples=40, deadline=None)
@given(chunk=st.one_of(st.none(), st.integers(1, 7)), uniformity=st.sampled_from(["entropy", "collision"]), **sizes)
def test_values_and_gradients_equal_the_reference_in_float32(chunk, uniformity, **shape):
    arguments = problem(**shape, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in arguments[:4]] + [arguments[4]]
    ours = gradients(carp_loss, arguments, chunk=chunk, uniformity=uniformity)
    assert_equal(ours, gradients(reference_loss, exact, uniformity=uniformity), 1e-5)


def test_the_chunk_changes_nothing_but_rounding():
    arguments = problem(views=4, images=16, embedding=8, blocks=12, block_size=8)
    whole = gradients(carp_loss, arguments, chunk=12)
    for chunk in (1, 2, 5, 7):
        assert_equal(gradients(carp_loss, arguments, chunk=chunk), whole, 1e-13)


@pytest.mark.parametrize("uniformity", ["entropy", "collision"])
@pytest.mark.parametrize("block_size", [1, 3, 12])
def test_the_gradient_is_the_derivative(block_size, uniformity):
    z, w, c, t, partition = problem(views=3, blocks=12 // block_size, block_size=block_size)

    def total(z, c):
        return carp_loss(z, w, c, t, partition, entropy_weight=2.0, uniformity=uniformity).total

    assert torch.autograd.gradcheck(total, (z, c))


def test_pairs_that_underflow_have_the_gradient_of_the_logarithm():
    """Logits so far apart that ⟨s, t⟩ is zero in floating point: s − softmax(a + b), by hand."""
    z = torch.zeros(2, 1, 2, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        z[0, 0], z[1, 0] = torch.tensor([2000.0, 0.0]), torch.tensor([0.0, 3000.0])
    w, c = z.detach().clone(), torch.eye(2, dtype=torch.float64)
    terms = carp_loss(z, w, c, c, torch.tensor([[0, 1]]), entropy_weight=0.0)
    # a + b = (2000, 3000): log⟨s, t⟩ = 3000 − 2000 − 3000, in both directions.
    assert float(terms.consistency.detach()) == pytest.approx(4000.0)
    terms.total.backward()
    # View 1 has s = (1, 0) and r = (0, 1); view 2 agrees with softmax(a + b) already.
    assert z.grad[0, 0].tolist() == [1.0, -1.0]
    assert z.grad[1, 0].tolist() == [0.0, 0.0]


def test_without_gradient_only_values_are_formed():
    arguments = problem()
    with torch.no_grad():
        terms = carp_loss(*arguments)
    assert not terms.total.requires_grad
    assert [float(t) for t in terms] == pytest.approx([float(t.detach()) for t in carp_loss(*arguments)], rel=1e-12)


@pytest.mark.parametrize("frozen", ["z", "prototypes"])
def test_one_of_the_two_may_need_no_gradient(frozen):
    z, w, c, t, partition = problem()
    expected = gradients(reference_loss, (z, w, c, t, partition))[1]
    if frozen == "z":
        carp_loss(z.detach(), w, c, t, partition, entropy_weight=3.0).total.backward()
        assert z.grad is None
        torch.testing.assert_close(c.grad, expected[1])
    else:
        carp_loss(z, w, c.detach(), t, partition, entropy_weight=3.0).total.backward()
        assert c.grad is None
        torch.testing.assert_close(z.grad, expected[0])


def test_it_may_be_used_twice_in_one_graph_and_scaled():
    z, w, c, t, partition = problem()
    other = random_partition(12, 6, generator=torch.Generator().manual_seed(9))
    both = 0.5 * carp_loss(z, w, c, t, partition).total + 2 * carp_loss(z, w, c, t, other).total
    reference = 0.5 * reference_loss(z, w, c, t, partition).total + 2 * reference_loss(z, w, c, t, other).total
    for ours, theirs in zip(torch.autograd.grad(both, (z, c)), torch.autograd.grad(reference, (z, c)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_half_precision_embeddings_are_summed_in_float32_and_get_gradients_of_their_own_type():
    z, w, c, t, partition = problem(images=64, embedding=16, dtype=torch.bfloat16)
    terms = carp_loss(z, w, c, t, partition)
    assert terms.total.dtype == torch.float32
    terms.total.backward()
    assert z.grad.dtype == c.grad.dtype == torch.bfloat16
    wide = [x.detach().double() for x in (z, w, c, t)]
    assert float(terms.total.detach()) == pytest.approx(float(reference_loss(*wide, partition).total), rel=1e-5)


def test_under_autocast_the_head_stays_in_float32():
    arguments = problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = carp_loss(*arguments)
    assert float(inside.total.detach()) == float(carp_loss(*arguments).total.detach())


def test_identical_views_and_a_single_image():
    z, w, c, t, partition = problem(images=1)
    same = z.detach()[:1].repeat(2, 1, 1).requires_grad_()
    arguments = (same, w[:1].repeat(2, 1, 1), c, t, partition)
    assert_equal(gradients(carp_loss, arguments), gradients(reference_loss, arguments), 1e-12)


def test_one_graph_may_be_gone_through_twice():
    """The first pass takes the stored gradients away; the second walks again."""
    z, w, c, t, partition = problem(views=3)
    total = carp_loss(z, w, c, t, partition, entropy_weight=3.0).total
    first = torch.autograd.grad(total, (z, c), retain_graph=True)
    second = torch.autograd.grad(2 * total, (z, c))
    for once, twice in zip(first, second, strict=True):
        torch.testing.assert_close(2 * once, twice)
