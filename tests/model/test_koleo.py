"""KoLeo against loops, its gradient against finite differences, and the inputs where a logarithm could go wrong."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from carp import carp_loss, random_partition, reference_loss
from carp.config import Config
from carp.model.koleo import LEAST_DISTANCE, koleo


def embeddings(views=2, images=7, dimensions=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(views, images, dimensions, dtype=torch.float64, generator=generator)


def loops(z_VBD, distance=LEAST_DISTANCE):
    """The definition, image by image."""
    terms = []
    for view in np.asarray(z_VBD):
        unit = [row / math.sqrt(sum(x * x for x in row)) for row in view]
        for i, own in enumerate(unit):
            nearest = min(math.dist(own, other) for j, other in enumerate(unit) if j != i)
            terms.append(-math.log(math.hypot(nearest, distance)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("images", [2, 3, 31])
@pytest.mark.parametrize("distance", [LEAST_DISTANCE, 0.5])
def test_the_term_equals_the_loops(views, images, distance):
    z = embeddings(views, images)
    assert float(koleo(z, distance)) == pytest.approx(loops(z, distance), rel=1e-12)
    assert float(koleo(z.float(), distance)) == pytest.approx(loops(z, distance), rel=1e-5)


def test_the_default_is_that_of_the_setting():
    assert Config(epochs=1, batch_size=2).koleo_distance == LEAST_DISTANCE
    assert torch.equal(koleo(embeddings()), koleo(embeddings(), LEAST_DISTANCE))


@pytest.mark.parametrize("distance", [0.1, 0.5])
def test_neighbours_at_the_distance_are_pushed_hardest(distance):
    def push(apart):
        angle = 2 * math.asin(apart / 2)
        pair = torch.tensor([[[1.0, 0.0], [math.cos(angle), math.sin(angle)]]], dtype=torch.float64)
        on_angle = float(torch.autograd.grad(koleo(pair.requires_grad_(), distance), pair)[0].norm())
        return on_angle / math.cos(angle / 2)  # per unit of distance

    closer, at, further = push(distance / 3), push(distance), push(3 * distance)
    assert at > 1.5 * closer
    assert at > 1.5 * further
    assert push(1e-6) < 1e-4 * at


def test_the_length_of_an_embedding_does_not_matter():
    z = embeddings()
    assert float(koleo(z * torch.rand(2, 7, 1, dtype=torch.float64).add(0.1))) == pytest.approx(float(koleo(z)))


def test_the_gradient_equals_finite_differences():
    for distance in (LEAST_DISTANCE, 0.5):
        assert torch.autograd.gradcheck(partial(koleo, distance=distance), [embeddings().requires_grad_()])


def test_a_step_against_the_gradient_moves_the_two_closest_images_apart():
    z = torch.nn.functional.normalize(embeddings(views=1, images=20), dim=-1).requires_grad_()
    distances = torch.cdist(z[0], z[0]).fill_diagonal_(math.inf)
    koleo(z).backward()
    moved = torch.nn.functional.normalize(z.detach() - 1e-3 * z.grad, dim=-1)
    assert torch.cdist(moved[0], moved[0]).fill_diagonal_(math.inf).min() > distances.min()


def test_equal_embeddings_and_zeros_have_finite_values_and_gradients():
    """Blank images give equal embeddings; a dead projector gives zeros."""
    for z in (torch.ones(2, 4, 8), torch.zeros(2, 4, 8), torch.ones(2, 4, 8) + 1e-6 * torch.randn(2, 4, 8)):
        z.requires_grad_()
        value = koleo(z)
        value.backward()
        assert 0 < value.item() <= -math.log(LEAST_DISTANCE) + 1e-4
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()


def test_a_single_image_has_no_neighbour():
    assert float(koleo(embeddings(images=1))) == 0


def test_bf16_autocast_does_not_change_the_neighbours():
    z = embeddings(images=200).float()
    with torch.autocast("cpu", torch.bfloat16):
        under = koleo(z)
    assert torch.equal(under, koleo(z))


@pytest.mark.parametrize("loss", [carp_loss, reference_loss])
def test_the_loss_adds_the_term_of_the_global_views(loss):
    z, w = embeddings(views=3), embeddings(views=2, seed=1)
    prototypes = torch.nn.functional.normalize(embeddings(1, 12, seed=2)[0], dim=-1)
    partition = random_partition(12, 4, generator=torch.Generator().manual_seed(0))
    given = (z, w, prototypes, prototypes, partition)
    plain, added = loss(*given), loss(*given, koleo_weight=0.3, koleo_distance=0.7)
    assert float(added.total - plain.total) == pytest.approx(0.3 * loops(z[:2], 0.7))
    assert (added.consistency, added.kl_to_uniform) == (plain.consistency, plain.kl_to_uniform)
