"""Batches from tar shards and Parquet files: the same with any number of workers, from any step, on any rank."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carp.config import Config
from carp.images.loading.loader import PhotoLoader
from carp.images.loading.order import Order
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources import parquet
from tests.helpers import tiny_images
from tests.images.test_tar_shards import write_shards

COUNT, BATCH, STEPS = 43, 5, 8  # eight batches an epoch, three images left over
IMAGES = tiny_images(COUNT, 40)


@pytest.fixture(scope="module", params=["tar", "parquet"])
def source(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tar":
        opened = open_source(write_shards(folder / "data", IMAGES, per_shard=6))
        opened.keep_index(folder / "index")
        yield opened
        return
    pytest.importorskip("pyarrow", reason="needs the extra [parquet]")
    from tests.images.test_parquet import write_parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_HELD_BYTES", 30_000)  # a few groups of three images: the others are read again
        yield open_source(write_parts(folder / "data", IMAGES, per_file=20, group=3))


def config(**settings_):
    values = {"batch_size": BATCH, "global_size": 72, "shuffle_buffer": 12, "seed": 5, "blur": [0, 0, 0], **settings_}
    return Config(**values)


def batches(source, first, last, **settings_):
    return list(PhotoLoader(source, config(**settings_)).batches(first, last))


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert (a.step, a.epoch, a.indices.tolist()) == (b.step, b.epoch, b.indices.tolist())
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


@pytest.fixture(scope="module")
def whole(source):
    return batches(source, 0, 2 * STEPS, workers=0)


@pytest.mark.parametrize("workers", [1, 4])
def test_batches_are_the_same_with_any_number_of_workers(source, whole, workers):
    assert_same(batches(source, 0, 2 * STEPS, workers=workers), whole)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_from_any_step_a_run_is_that_never_interrupted(source, whole, data):
    first = data.draw(st.integers(0, 2 * STEPS - 1))
    assert_same(batches(source, first, 2 * STEPS, workers=data.draw(st.sampled_from([0, 2]))), whole[first:])


def test_an_epoch_has_every_image_at_most_once_and_shows_the_right_one(source, whole):
    for epoch in range(2):
        used = np.concatenate([batch.indices for batch in whole if batch.epoch == epoch])
        assert len(np.unique(used)) == len(used) == STEPS * BATCH
    for index in range(COUNT):
        assert np.array_equal(read(source, index), IMAGES[index])


def test_the_order_stays_within_a_few_groups(source):
    order = Order.of_source(source, config())
    group_of = np.repeat(np.arange(len(source.groups)), source.groups)
    spread = [len(np.unique(group_of[indices])) for _, _, indices in order.steps(0, STEPS)]
    assert max(spread) < len(source.groups)
    longest = [np.ptp(np.flatnonzero(group_of[order.of_epoch(0).ravel()] == g)) for g in range(5)]
    assert max(longest) < 2 * 12 + source.groups.max()


@pytest.mark.parametrize("world", [2, 5])
def test_ranks_split_an_epoch_without_overlap_or_loss(source, world):
    order = Order.of_source(source, config())
    parts = [np.concatenate([i[rank::world] for _, _, i in order.steps(0, STEPS)]) for rank in range(world)]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert set(together.tolist()) == set(order.of_epoch(0).ravel().tolist())
