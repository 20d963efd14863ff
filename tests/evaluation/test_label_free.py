"""Measures without labels: exact on features whose answer is known, and the same views whenever they are asked for."""

import numpy as np
import pytest
import torch
from torch import nn

from carp.evaluation.during_training.label_free import (
    MEASURES,
    ViewsOf,
    discriminant_rank,
    discriminant_ratio,
    features_of_views,
    neighbour_overlap,
    view_retrieval,
)
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import held_out
from tests.helpers import tiny_images

M, V, WIDTH = 60, 4, 24


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def views(images_MF: np.ndarray, spread: float, seed: int = 1) -> np.ndarray:
    return images_MF[None] + spread * noise(V, *images_MF.shape, seed=seed)


def test_views_that_are_alike_are_found_and_random_ones_are_not() -> None:
    images = noise(M, WIDTH)
    assert view_retrieval(views(images, 0.01)) == 1.0
    assert view_retrieval(noise(V, M, WIDTH)) < 0.1
    # A common offset makes all cosines 1, but does not help
    assert view_retrieval(noise(V, M, WIDTH) + 1000) < 0.1


def test_neighbours_survive_small_changes_only() -> None:
    images = noise(M, WIDTH)
    assert neighbour_overlap(images, images[None].repeat(V, 0)) == 1.0
    close, far = neighbour_overlap(images, views(images, 0.2)), neighbour_overlap(images, noise(V, M, WIDTH, seed=9))
    assert 1 > close > far
    assert far == pytest.approx(10 / (M - 1), abs=0.06)  # by chance


def test_ranks_count_the_directions_that_are_used() -> None:
    few = noise(M, 3) @ noise(3, WIDTH, seed=2)
    rank = MEASURES["effective_rank"]
    assert rank(few, few[None]) <= 3.01
    assert rank(noise(M, WIDTH), few[None]) > 15
    # Three directions differ between images; the others are noise within them
    assert discriminant_rank(views(10 * few, 1.0)) < 4.5
    assert discriminant_rank(views(noise(M, WIDTH), 0.1)) > 15


def test_a_larger_difference_between_images_is_a_larger_ratio() -> None:
    images = noise(M, WIDTH)
    assert discriminant_ratio(views(images, 0.1)) > discriminant_ratio(views(images, 1.0)) > 0


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_features_that_are_all_alike_give_a_finite_number(name: str) -> None:
    same = np.ones((M, WIDTH), dtype=np.float32)
    assert np.isfinite(MEASURES[name](same, same[None].repeat(V, 0)))


def test_views_depend_on_the_seed_the_number_and_the_image_alone() -> None:
    source = ArraySource(tiny_images(6, 40))
    one, again, other, seed = (
        ViewsOf(source, 24, number=number, seed=seed, interpolation="bicubic")
        for number, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert one.fetch(3).shape == (24, 24, 3)
    assert np.array_equal(one.fetch(3), again.fetch(3))
    assert not np.array_equal(one.fetch(3), other.fetch(3))
    assert not np.array_equal(one.fetch(3), seed.fetch(3))


def test_features_of_views_go_through_the_encoder() -> None:
    encoder = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    images_MF, views_VMF = features_of_views(
        encoder, ArraySource(tiny_images(7, 32)), size=32, device=torch.device("cpu"), views=2
    )
    assert images_MF.shape == (7, 12)
    assert views_VMF.shape == (2, 7, 12)


def test_held_out_images_are_disjoint_from_the_others_and_fixed_by_the_seed() -> None:
    source = ArraySource(tiny_images(50))
    train, others = held_out(source, 8, seed=1)
    assert (len(train), len(others)) == (42, 8)
    assert {*train.indices.tolist(), *others.indices.tolist()} == set(range(50))  # type: ignore[attr-defined]
    assert np.array_equal(held_out(source, 8, seed=1)[1].indices, others.indices)
    assert not np.array_equal(held_out(source, 8, seed=2)[1].indices, others.indices)
    assert held_out(source, 0, seed=1)[0] is source


def test_the_rest_of_sharded_images_keeps_its_shards() -> None:
    source = ArraySource(tiny_images(50))
    source.groups, source.window = np.array([20, 1, 29]), 25
    train, others = held_out(source, 30, seed=0)
    assert train.groups is not None
    assert train.groups.sum() == len(train) == 20
    assert (train.groups > 0).all()
    assert train.window == 25
    assert others.groups is None
