"""Batches: the same with any number of workers, startable at any step, each image once an epoch."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from carp.config import Config
from carp.data.loader import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PhotoLoader,
    SmallImageLoader,
    make_loader,
    normalise,
)
from carp.data.source import ArraySource, FolderSource
from carp.errors import DataError

NUM_IMAGES, BATCH = 14, 4  # three batches an epoch, two images left over
STEPS_PER_EPOCH = 3


def pictures(count=NUM_IMAGES, height=40, width=56):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def photo_config(**settings_):
    return Config(**{"batch_size": BATCH, "global_size": 72, "local_size": 16, "local_views": 1, **settings_})


def small_config(**settings_):
    return Config(**{"batch_size": BATCH, "global_size": 32, "local_size": 16, "local_views": 1, **settings_})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for i, pixels in enumerate(pictures()):
        Image.fromarray(pixels).save(root / f"{i:02d}.png")
    return FolderSource(root)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.step, a.epoch) == (b.step, b.epoch)
        assert np.array_equal(a.indices, b.indices)
        assert len(a.views) == len(b.views) == 3
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))


# Loaders


def test_more_workers_than_cores_are_nobodys_warning(folder, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0}, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(PhotoLoader(folder, photo_config(workers=2)).batches(0, 1))) == 1


def test_photographs_come_out_the_same_with_any_number_of_workers(folder):
    last = 2 * STEPS_PER_EPOCH + 1
    none, one, three = (
        list(PhotoLoader(folder, photo_config(workers=workers)).batches(0, last)) for workers in (0, 1, 3)
    )
    assert len(none) == last
    assert [tuple(v.shape) for v in none[0].views] == [(BATCH, 3, 72, 72)] * 2 + [(BATCH, 3, 16, 16)]
    assert all(view.dtype == torch.uint8 for view in none[0].views)
    assert_same(one, none)
    assert_same(three, none)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("first", [1, STEPS_PER_EPOCH, 4])
def test_photographs_from_a_later_step_are_those_of_the_whole_run(folder, first, workers):
    whole = list(PhotoLoader(folder, photo_config(workers=0)).batches(0, 6))
    assert_same(list(PhotoLoader(folder, photo_config(workers=workers)).batches(first, 6)), whole[first:])


@pytest.mark.parametrize("first", [1, STEPS_PER_EPOCH, 4])
def test_small_images_from_a_later_step_are_those_of_the_whole_run(first):
    source = ArraySource(pictures())
    whole = list(SmallImageLoader(source, small_config()).batches(0, 6))
    assert_same(list(SmallImageLoader(source, small_config()).batches(first, 6)), whole[first:])


def test_a_small_loader_can_be_started_twice():
    loader = SmallImageLoader(ArraySource(pictures()), small_config())
    assert_same(list(loader.batches(0, 4)), list(loader.batches(0, 4)))


def loaders(folder, **settings_):
    small = SmallImageLoader(ArraySource(pictures()), small_config(**settings_))
    return [small, PhotoLoader(folder, photo_config(workers=0, **settings_))]


def test_an_epoch_uses_each_image_at_most_once_and_epochs_differ(folder):
    for loader in loaders(folder):
        assert loader.steps_per_epoch == STEPS_PER_EPOCH
        batches = list(loader.batches(0, 4 * STEPS_PER_EPOCH))
        orders = set()
        for epoch in range(4):
            mine = [b for b in batches if b.epoch == epoch]
            assert [b.step for b in mine] == list(range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH))
            used = np.concatenate([b.indices for b in mine]).tolist()
            assert len(used) == len(set(used)) == STEPS_PER_EPOCH * BATCH
            assert set(used) <= set(range(NUM_IMAGES))
            orders.add(tuple(used))
        assert len(orders) == 4


def test_both_loaders_have_the_same_order_and_another_seed_another(folder):
    small, photo = (list(loader.batches(0, 3)) for loader in loaders(folder))
    other, _ = (list(loader.batches(0, 3)) for loader in loaders(folder, seed=1))
    assert [b.indices.tolist() for b in small] == [b.indices.tolist() for b in photo]
    assert [b.indices.tolist() for b in small] != [b.indices.tolist() for b in other]


def test_the_views_of_an_image_change_from_epoch_to_epoch():
    source = ArraySource(pictures(count=4))
    first, second = SmallImageLoader(source, small_config()).batches(0, 2)
    a = first.views[0][np.argsort(first.indices)]
    b = second.views[0][np.argsort(second.indices)]
    assert all(not torch.allclose(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "make",
    [lambda c: SmallImageLoader(ArraySource(pictures(3)), c), lambda c: PhotoLoader(ArraySource(pictures(3)), c)],
)
def test_fewer_images_than_a_batch_is_an_error_that_says_what_to_set(make):
    with pytest.raises(DataError, match=r"batch_size is 4 but there are only 3 images\. Set batch_size=3 or less"):
        make(small_config())


def test_the_size_of_the_views_and_the_source_choose_the_loader(folder):
    assert isinstance(make_loader(ArraySource(pictures()), small_config()), SmallImageLoader)
    assert isinstance(make_loader(ArraySource(pictures()), photo_config()), PhotoLoader)
    assert isinstance(make_loader(folder, small_config()), PhotoLoader)


def test_normalising_bytes_and_floats_is_imagenets_mean_and_deviation():
    images = torch.from_numpy(pictures(2)).permute(0, 3, 1, 2)
    expected = (images.double() / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(
        3, 1, 1
    )
    for given_ in (images, images.float() / 255):
        for channels_last in (False, True):
            found = normalise(given_, torch.device("cpu"), channels_last=channels_last)
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
            assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_normalising_leaves_the_batch_as_it_was():
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    normalise(images, torch.device("cpu"))
    assert torch.equal(images, before)
