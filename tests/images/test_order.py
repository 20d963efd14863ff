"""The order of images: each once an epoch, the same whenever it is asked for, in windows where images lie in shards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carp.errors import DataError
from carp.images.loading.order import Order

NUM_IMAGES, BATCH = 14, 4


@settings(max_examples=60, deadline=None)
@given(
    num_images=st.integers(2, 200), batch=st.integers(2, 50), epoch=st.integers(0, 10**6), seed=st.integers(0, 2**62)
)
def test_an_order_is_whole_batches_of_different_images(num_images, batch, epoch, seed):
    if num_images < batch:
        with pytest.raises(DataError, match=f"batch_size is {batch} but there are only {num_images} images"):
            Order(num_images, batch, seed)
        return
    order = Order(num_images, batch, seed).of_epoch(epoch)
    assert order.shape == (num_images // batch, batch)
    assert len(np.unique(order)) == order.size
    assert order.min() >= 0
    assert order.max() < num_images


def test_images_left_over_by_one_epoch_are_used_by_others():
    order = Order(NUM_IMAGES, BATCH, 0)
    assert {int(i) for epoch in range(20) for i in order.of_epoch(epoch).flatten()} == set(range(NUM_IMAGES))


def in_groups(groups, batch, seed=0, window=10):
    return Order(sum(groups), batch, seed, groups=np.array(groups, dtype=np.int64), window=window)


groups_strategy = st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(lambda groups: sum(groups) >= 2)


@settings(max_examples=150, deadline=None)
@given(
    groups=groups_strategy,
    batch=st.integers(2, 20),
    window=st.integers(1, 80),
    epoch=st.integers(0, 10**6),
    seed=st.integers(0, 2**62),
)
def test_an_order_of_groups_is_a_part_of_a_permutation_and_always_the_same(groups, batch, window, epoch, seed):
    batch = min(batch, sum(groups))
    order = in_groups(groups, batch, seed, window).of_epoch(epoch)
    assert order.shape == (sum(groups) // batch, batch)
    assert order.dtype == np.int64
    assert len(np.unique(order)) == order.size
    assert 0 <= order.min() <= order.max() < sum(groups)
    assert np.array_equal(order, in_groups(groups, batch, seed, window).of_epoch(epoch))


@settings(max_examples=80, deadline=None)
@given(groups=groups_strategy, window=st.integers(1, 80), epoch=st.integers(0, 1000), seed=st.integers(0, 2**62))
def test_windows_are_whole_groups_and_come_one_after_the_other(groups, window, epoch, seed):
    total = sum(groups)
    order = in_groups(groups, total, seed, window).of_epoch(epoch)[0]  # one batch: all images
    assert sorted(order.tolist()) == list(range(total))
    group_of = np.repeat(np.arange(len(groups)), groups)[order]
    sizes, start = [], 0
    while start < total:  # the shortest stretch that holds whole groups only
        end = start + 1
        while len(set(group_of[start:end]) & set(group_of[end:])):
            end += 1
        sizes.append(end - start)
        start = end
    # A window is closed as soon as it is full, and the last one takes what would be left alone.
    assert all(size < 2 * window + max(groups) for size in sizes)


def test_the_images_of_a_window_are_mixed_and_shards_differ_from_epoch_to_epoch():
    order = in_groups([100] * 50, 100, window=500)
    first, second = order.of_epoch(0), order.of_epoch(1)
    for epoch in (first, second):
        for window in epoch.reshape(10, 500):
            assert len(np.unique(window // 100)) == 5
            assert len(np.unique(window[:100] // 100)) == 5  # a batch has images of all five shards
    assert set(first[0] // 100) != set(second[0] // 100)


def test_few_images_are_mixed_whatever_their_shards():
    assert np.array_equal(in_groups([5, 9], 4, window=14).of_epoch(3), Order(14, 4, 0).of_epoch(3))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_that_take_every_nth_image_lose_and_repeat_nothing(world):
    order = in_groups([7, 13, 20, 3, 21], 16, window=20)
    for _, _, indices in order.steps(1, 9):
        parts = [indices[rank::world] for rank in range(world)]
        assert {len(part) for part in parts} == {16 // world}
        assert sorted(np.concatenate(parts).tolist()) == sorted(indices.tolist())


@settings(max_examples=30, deadline=None)
@given(first=st.integers(0, 30), seed=st.integers(0, 2**62))
def test_steps_from_the_middle_are_those_of_the_whole(first, seed):
    order = in_groups([7, 13, 20, 3, 21], 6, seed, window=20)
    whole = [(step, epoch, indices.tolist()) for step, epoch, indices in order.steps(0, 31)]
    assert [(s, e, i.tolist()) for s, e, i in order.steps(first, 31)] == whole[first:]
