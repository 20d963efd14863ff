"""What is random about a view: the distributions, the boxes, and what the draws depend on."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from carp.config import Config
from carp.images.views.view_parameters import draw_view, draw_views, view_kinds
from tests.images.pictures import NOTHING


def draw(kind, count=20_000, *, height=1000, width=1000, view=0, seed=0, epoch=0):
    sizes = {"heights": np.full(count, height), "widths": np.full(count, width)}
    return draw_view(kind, seed=seed, epoch=epoch, indices=np.arange(count), view=view, **sizes)


# Distributions: 20,000 draws, five standard deviations


FIRST, SECOND, LOCAL = view_kinds(Config(local_views=1))
DRAWS = 20_000


def share_is(chosen, probability):
    deviation = math.sqrt(probability * (1 - probability) / len(chosen))
    return abs(chosen.mean() - probability) <= 5 * deviation


def is_uniform(values, low, high):
    """Kolmogorov–Smirnov at p = 1e-6 or so, for values on a continuous scale."""
    x = np.sort((values - low) / (high - low))
    steps = np.arange(1, len(x) + 1) / len(x)
    gap = max(np.abs(x - steps).max(), np.abs(x - steps + 1 / len(x)).max())
    return x[0] >= 0 and x[-1] <= 1 and gap < 2.7 / math.sqrt(len(x))


@pytest.mark.parametrize("kind", [FIRST, SECOND, LOCAL], ids=["first", "second", "local"])
def test_flip_jitter_and_grey_have_byols_probabilities_in_every_view(kind):
    found = draw(kind)
    assert share_is(found.flip, 0.5)
    assert share_is(found.jitter, 0.8)
    assert share_is(found.grey, 0.2)


def test_blur_is_certain_rare_and_even_in_the_three_kinds_of_view():
    assert draw(FIRST).blur.all()
    assert share_is(draw(SECOND, view=1).blur, 0.1)
    assert share_is(draw(LOCAL, view=2).blur, 0.5)


def test_only_the_second_global_view_is_solarised():
    assert not draw(FIRST).solarise.any()
    assert share_is(draw(SECOND, view=1).solarise, 0.2)
    assert not draw(LOCAL, view=2).solarise.any()


def test_blur_width_and_colour_factors_are_uniform_in_their_ranges():
    found = draw(FIRST)
    assert is_uniform(found.sigma, 0.1, 2.0)
    for number, (low, high) in enumerate([(0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1)]):
        assert is_uniform(found.factors[:, number], low, high)


def test_all_orders_of_the_four_colour_operations_are_equally_likely():
    orders, counts = np.unique(draw(FIRST).order, axis=0, return_counts=True)
    assert len(orders) == 24
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders.tolist())
    deviation = math.sqrt(DRAWS / 24 * (23 / 24))
    assert np.abs(counts - DRAWS / 24).max() < 5 * deviation


def test_local_crops_have_uniform_area_and_log_uniform_shape():
    # At most a fifth of a square: every first attempt fits, so nothing is rejected.
    _, _, height, width = draw(LOCAL).box.T
    area, log_ratio = height * width / 1e6, np.log(width / height)
    slack = 0.005  # whole pixels
    assert is_uniform(np.clip(area, 0.05, 0.2), 0.05, 0.2)
    assert area.min() > 0.05 - slack
    assert area.max() < 0.2 + slack
    edge = math.log(4 / 3)
    assert is_uniform(np.clip(log_ratio, -edge, edge), -edge, edge)
    assert np.abs(log_ratio).max() < edge + slack


def test_crops_lie_anywhere_they_fit_with_equal_chance():
    top, left, height, width = draw(LOCAL).box.T
    assert is_uniform((top + 0.5) / (1000 - height + 1), 0, 1)
    assert is_uniform((left + 0.5) / (1000 - width + 1), 0, 1)


@pytest.mark.parametrize(("height", "width"), [(500, 500), (300, 800), (900, 200)])
def test_global_crops_are_distributed_as_torchvisions(height, width):
    ours = draw(FIRST, height=height, width=width).box
    torch.manual_seed(0)
    blank = torch.empty(1, height, width)
    theirs = np.array([RandomResizedCrop.get_params(blank, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    limit = 2.3 * math.sqrt(1 / len(ours) + 1 / len(theirs))  # two-sample Kolmogorov–Smirnov, p = 5e-5 or so

    def gap(a, b):
        places = np.unique(np.concatenate([a, b]))
        below = [np.searchsorted(np.sort(x), places, side="right") / len(x) for x in (a, b)]
        return np.abs(below[0] - below[1]).max()

    for column in range(4):  # top, left, height, width
        assert gap(ours[:, column], theirs[:, column]) < limit
    assert gap(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < limit
    assert gap(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3]) < limit


def test_decisions_of_a_view_are_independent_of_each_other_and_of_those_of_other_views():
    kind = replace(SECOND, blur=0.5, solarise=0.5)
    columns = []
    for view, epoch, seed in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]:
        found = draw(kind, view=view, epoch=epoch, seed=seed)
        top, left, height, width = found.box.T
        columns += [found.flip, found.jitter, found.grey, found.blur, found.solarise, found.sigma, *found.factors.T]
        columns += [top / 1000, left / 1000, height * width, found.order[:, 0]]
    correlation = np.corrcoef(np.stack(columns).astype(np.float64))
    np.fill_diagonal(correlation, 0)
    one = len(columns) // 4
    places = (10, 11, 12)  # top and left depend on the size of the crop by construction
    for start in range(0, len(columns), one):
        for a in places:
            for b in places:
                correlation[start + a, start + b] = 0
    assert np.abs(correlation).max() < 5 / math.sqrt(DRAWS)


# Boxes


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6000), st.integers(1, 6000)), min_size=1, max_size=20),
    scale=st.tuples(st.floats(1e-4, 1), st.floats(1e-4, 1)).map(sorted).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_crop_is_not_empty_and_lies_inside_its_image(sizes, scale, seed):
    check_boxes(sizes, scale, seed)


@pytest.mark.parametrize("size", [(1, 1), (1, 6000), (6000, 1), (2, 1), (1, 2), (3, 5000), (5000, 3)])
@pytest.mark.parametrize("scale", [(0.05, 0.2), (0.2, 1.0), (1.0, 1.0)])
def test_a_crop_of_an_extreme_image_lies_inside_it(size, scale):
    check_boxes([size] * 2000, scale, 0)


def check_boxes(sizes, scale, seed):
    heights, widths = np.array(sizes).T
    kind = replace(NOTHING, scale=scale)
    found = draw_view(kind, seed=seed, epoch=0, indices=np.arange(len(sizes)), view=0, heights=heights, widths=widths)
    top, left, height, width = found.box.T
    assert (height >= 1).all()
    assert (width >= 1).all()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= heights).all()
    assert (left + width <= widths).all()


@pytest.mark.parametrize(("height", "width", "box"), [(30, 300, (0, 130, 30, 40)), (300, 30, (130, 0, 40, 30))])
def test_when_nothing_fits_the_central_crop_has_the_nearest_permitted_shape(height, width, box):
    found = draw(replace(NOTHING, scale=(1.0, 1.0)), 50, height=height, width=width)
    assert (found.box == np.array(box)).all()


# What a draw depends on


def equal(a, b, rows=slice(None)):
    return all(np.array_equal(getattr(a, field.name)[rows], getattr(b, field.name)) for field in fields(a))


def differing(a, b):
    """The share of images for which something differs."""
    rows = [
        any(not np.array_equal(getattr(a, field.name)[i], getattr(b, field.name)[i]) for field in fields(a))
        for i in range(len(a.flip))
    ]
    return np.mean(rows)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 10_000),
    view=st.integers(0, 9),
    batch=st.lists(st.integers(0, 2_000_000), min_size=1, max_size=30, unique=True),
    data=st.data(),
)
def test_parameters_are_the_same_in_whatever_batch_they_are_drawn(seed, epoch, view, batch, data):
    def parameters(indices):
        sizes = {"heights": np.array(indices) % 400 + 1, "widths": np.array(indices) % 300 + 1}
        return draw_view(SECOND, seed=seed, epoch=epoch, indices=np.array(indices), view=view, **sizes)

    together = parameters(batch)
    rows = data.draw(st.permutations(range(len(batch))))[: data.draw(st.integers(1, len(batch)))]
    assert equal(together, parameters([batch[row] for row in rows]), rows)
    one = draw_view(
        SECOND,
        seed=seed,
        epoch=epoch,
        indices=batch[0],
        view=view,
        heights=batch[0] % 400 + 1,
        widths=batch[0] % 300 + 1,
    )
    assert equal(together, one, slice(0, 1))


def test_another_epoch_index_view_or_seed_gives_other_parameters():
    here = draw(SECOND, 1000)
    assert differing(here, draw(SECOND, 1000)) == 0.0
    assert differing(here, draw(SECOND, 1000, epoch=1)) == 1.0
    assert differing(here, draw(SECOND, 1000, view=1)) == 1.0
    assert differing(here, draw(SECOND, 1000, seed=1)) == 1.0
    assert len(np.unique(here.sigma)) == 1000  # every index its own


def test_coordinates_are_not_interchangeable():
    a = draw_view(SECOND, seed=1, epoch=2, indices=3, view=4, heights=99, widths=99)
    b = draw_view(SECOND, seed=2, epoch=1, indices=3, view=4, heights=99, widths=99)
    c = draw_view(SECOND, seed=1, epoch=2, indices=4, view=3, heights=99, widths=99)
    assert differing(a, b) == 1.0
    assert differing(a, c) == 1.0


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10_000), index=st.integers(0, 2_000_000))
def test_all_views_of_an_image_drawn_at_once_are_those_drawn_one_by_one(seed, epoch, index):
    kinds = view_kinds(Config(local_views=6))
    together = draw_views(kinds, seed=seed, epoch=epoch, index=index, height=375, width=500)
    for view, kind in enumerate(kinds):
        one = draw_view(kind, seed=seed, epoch=epoch, indices=index, view=view, heights=375, widths=500)
        assert equal(together, one, slice(view, view + 1))
