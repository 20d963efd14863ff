"""Batches: the same with any number of workers, startable at any step, each image once an epoch."""

import json
import os
import subprocess
import sys
import threading
import warnings

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from carp.config import IMAGENET_MEAN, IMAGENET_STD, Config
from carp.errors import BadImagesError, DataError
from carp.images.loading import loader as loader_module
from carp.images.loading.in_memory import hold_in_memory, is_readable
from carp.images.loading.loader import (
    PhotoLoader,
    SmallImageLoader,
    make_loader,
    normalise,
)
from carp.images.loading.quarantine import Quarantine, substitutes
from carp.images.loading.workers import by_workers
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from carp.images.views.batch_views import batch_views
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import view_kinds

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


class _Threads:
    """What a worker finds, as a dataset."""

    def __getitems__(self, _items):
        return cv2.getNumThreads()


def test_workers_are_forked_when_opencv_has_no_threads_which_they_would_wait_for():
    cv2.setNumThreads(2)
    pixels = np.zeros((500, 500, 3), dtype=np.uint8)
    cv2.warpPerspective(pixels, np.eye(3), (500, 500))
    assert list(by_workers(_Threads(), [[(0, 0)], [(0, 1)]], 2)) == [1, 1]


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


# Images that cannot be read


BAD = (2, 5, 9)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """The photographs, three of them broken each in its way."""
    root = tmp_path_factory.mktemp("damaged")
    for i, pixels in enumerate(pictures()):
        Image.fromarray(pixels).save(root / f"{i:02d}.png")
    source = FolderSource(root)
    (root / "02.png").write_bytes(b"")
    (root / "05.png").write_bytes((root / "05.png").read_bytes()[:900])
    (root / "09.png").unlink()
    return source


def expected_substitute(loader_seed, epoch, index):
    others = substitutes(NUM_IMAGES, seed=loader_seed, epoch=epoch, index=index)
    return next(other for other in others if other not in BAD)


def test_the_place_of_a_bad_photograph_is_filled_the_same_way_with_any_number_of_workers(damaged):
    config = {"max_bad_share": 0.5}
    none, one, three = (
        list(PhotoLoader(damaged, photo_config(workers=workers, **config)).batches(0, 7)) for workers in (0, 1, 3)
    )
    assert_same(one, none)
    assert_same(three, none)
    assert_same(list(PhotoLoader(damaged, photo_config(workers=3, **config)).batches(4, 7)), none[4:])
    seen = {int(i) for batch in none for i in batch.indices}
    assert seen >= set(BAD), "nothing was replaced"


def test_a_substitute_is_seen_through_the_views_of_the_image_that_was_due(damaged):
    kinds = view_kinds(photo_config())
    for batch in PhotoLoader(damaged, photo_config(workers=0, max_bad_share=0.5)).batches(0, 6):
        for row, index in enumerate(map(int, batch.indices)):
            taken = expected_substitute(0, batch.epoch, index) if index in BAD else index
            views = photo_views(pictures()[taken], "", kinds, seed=0, epoch=batch.epoch, index=index)
            assert all(torch.equal(a[row], b) for a, b in zip(batch.views, views, strict=True))


def test_small_images_are_replaced_by_the_same_ones_as_photographs(damaged):
    held = hold_in_memory(damaged, 32)
    whole = hold_in_memory(ArraySource(pictures()), 32)
    assert np.flatnonzero(~is_readable(held)).tolist() == list(BAD)
    for ours, theirs in zip(
        SmallImageLoader(held, small_config()).batches(0, 6),
        SmallImageLoader(whole, small_config()).batches(0, 6),
        strict=True,
    ):
        assert np.array_equal(ours.indices, theirs.indices)
        taken = [expected_substitute(0, ours.epoch, i) if i in BAD else i for i in map(int, ours.indices)]
        expected = batch_views(
            whole.images[taken], view_kinds(small_config()), seed=0, epoch=ours.epoch, indices=ours.indices
        )
        assert all(torch.equal(a, b) for a, b in zip(ours.views, expected, strict=True))


def test_what_was_bad_is_reported_with_place_and_reason(damaged, tmp_path):
    listed = {}
    for name, make in {
        "photographs": lambda q: list(PhotoLoader(damaged, photo_config(workers=2), q).batches(0, 9)),
        "small": lambda q: hold_in_memory(damaged, 32, missed=q.add),
    }.items():
        make(Quarantine(NUM_IMAGES, 0.5, tmp_path / name))
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        listed[name] = {line["index"]: (line["place"], line["reason"]) for line in lines}
    assert listed["photographs"] == listed["small"]
    root = damaged.root
    assert listed["small"] == {
        2: (str(root / "02.png"), "the file is empty"),
        5: (str(root / "05.png"), "image file is truncated"),
        9: (str(root / "09.png"), "there is no such file"),
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_when_no_image_can_be_read_the_first_batch_says_so_at_once(tmp_path, workers, share):
    for i in range(40):
        (tmp_path / f"{i}.jpg").write_bytes(b"")
    source, tries = FolderSource(tmp_path), []
    if workers == 0:
        real = source.fetch
        source.fetch = lambda index: tries.append(index) or real(index)
    loader = PhotoLoader(source, photo_config(workers=workers, max_bad_share=share))
    with pytest.raises(BadImagesError, match="cannot be read" if share < 1 else "nor any of the images tried"):
        next(loader.batches(0, 1))
    assert len(tries) <= 1001


def test_a_held_set_without_a_readable_image_is_one_error(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"none of the 3 images .* can be read; the first is .*0\.jpg: the file is"):
        hold_in_memory(FolderSource(tmp_path), 32)


# One ahead


def test_batches_made_ahead_are_the_same():
    source = ArraySource(pictures())
    ahead, in_turn = (SmallImageLoader(source, small_config(), ahead=ahead) for ahead in (True, False))
    assert_same(list(ahead.batches(1, 7)), list(in_turn.batches(1, 7)))
    assert list(ahead.batches(3, 3)) == []


def test_only_one_batch_is_made_ahead_and_closing_ends_the_thread(monkeypatch):
    made = []
    real = loader_module.batch_views
    monkeypatch.setattr(loader_module, "batch_views", lambda *a, **k: made.append(1) or real(*a, **k))
    batches = SmallImageLoader(ArraySource(pictures()), small_config(), ahead=True).batches(0, 100)
    for _ in range(3):
        next(batches)
    batches.close()
    assert 3 <= len(made) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("views")]


def test_an_error_in_the_thread_arrives_where_the_batch_was_asked_for(monkeypatch):
    def fail(*_arguments, **_settings):
        raise ZeroDivisionError

    monkeypatch.setattr(loader_module, "batch_views", fail)
    with pytest.raises(ZeroDivisionError):
        next(SmallImageLoader(ArraySource(pictures()), small_config(), ahead=True).batches(0, 5))


HOLDS = """
from torch.utils.data import Dataset
from carp.images.loading.workers import by_workers

class Numbers(Dataset):
    def __getitems__(self, items):
        if items[0][1] == {bad}:
            raise ValueError("of a worker")
        return items

made = by_workers(Numbers(), ([(0, i)] for i in range(1000)), 2)
for _ in range(5):
    next(made)
raise ValueError("of the program")
"""


@pytest.mark.parametrize(("bad", "message"), [(-1, "of the program"), (3, "of a worker")])
def test_an_error_ends_a_program_that_still_holds_its_workers(bad: int, message: str) -> None:
    """Workers do not heed the signal by which multiprocessing ends them at exit, and it waits for them."""
    done = subprocess.run(
        [sys.executable, "-c", HOLDS.replace("{bad}", str(bad))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1
    assert f"ValueError: {message}" in done.stderr
