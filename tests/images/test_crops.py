"""Crops and flips: a function of (seed, epoch, index) alone, every image once an epoch, none for a bad one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from carp.config import Config
from carp.errors import DataError
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.in_memory import hold_in_memory
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from carp.images.views.crops import CropBatch, Crops
from carp.images.views.interpolation import Interpolation
from carp.images.views.view_parameters import crop_and_flip, draw_view, draw_views, view_kinds
from carp.random import Purpose, key
from tests.helpers import tiny_images, write_images
from tests.images.pictures import photographs

COUNT = 14
SMALL, LARGE = 32, 72


def source_of(size: int) -> ArraySource:
    return ArraySource(tiny_images(COUNT, 32 if size == SMALL else 90))


def crops_of(source: Source, size: int, *, batch_size: int = 4, seed: int = 5, **more: object) -> Crops:
    return Crops(source, np.arange(len(source)), size=size, batch_size=batch_size, seed=seed, **more)


def by_image(batches: list[CropBatch]) -> dict[tuple[int, int], Tensor]:
    return {
        (batch.epoch, int(index)): image
        for batch in batches
        for index, image in zip(batch.indices, batch.images, strict=True)
    }


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small images", "photographs"])
def test_a_crop_depends_on_seed_epoch_and_index_only(size: int) -> None:
    source = source_of(size)
    whole = crops_of(source, size)
    assert whole.steps_per_epoch == 4
    batches = list(whole.batches(0, 8))
    assert [len(batch.indices) for batch in batches] == [3, 4, 3, 4] * 2, "even batches"
    expected = by_image(batches)
    assert expected.keys() == {(epoch, index) for epoch in (0, 1) for index in range(COUNT)}
    assert not torch.equal(expected[0, 3], expected[1, 3])
    variants = [crops_of(source, size, batch_size=n) for n in (1, 3, 100)]
    variants += [crops_of(source, size, ahead=True)] if size == SMALL else [crops_of(source, size, workers=2)]
    for other in variants:
        found = by_image(list(other.batches(0, 2 * other.steps_per_epoch)))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[at], expected[at]) for at in expected)
    some = Crops(source, np.arange(1, COUNT, 2), size=size, batch_size=4, seed=5)
    found = by_image(list(some.batches(0, some.steps_per_epoch)))
    assert found.keys() == {(0, index) for index in range(1, COUNT, 2)}
    assert all(torch.equal(found[at], expected[at]) for at in found)
    seeded = by_image(list(crops_of(source, size, seed=6).batches(0, 4)))
    assert not torch.equal(seeded[0, 3], expected[0, 3])


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small images", "photographs"])
def test_batches_from_a_later_step_are_those_of_the_whole(size: int) -> None:
    crops = crops_of(source_of(size), size)
    whole = list(crops.batches(0, 8))
    for later, before in zip(crops.batches(3, 8), whole[3:], strict=True):
        assert later.epoch == before.epoch
        assert np.array_equal(later.indices, before.indices)
        assert torch.equal(later.images, before.images)


def test_orders_differ_by_epoch_and_keep_within_shards() -> None:
    source = source_of(SMALL)
    crops = crops_of(source, SMALL)
    assert not np.array_equal(crops.of_epoch(0), crops.of_epoch(1))
    source.groups, source.window = np.array([5, 4, 5]), 4  # type: ignore[attr-defined]
    shard_of = np.repeat([0, 1, 2], source.groups)
    for epoch in range(3):
        order = crops.of_epoch(epoch)
        assert sorted(order) == list(range(COUNT))
        assert (np.diff(shard_of[order]) != 0).sum() <= 2  # one after the other


# Bicubic overshoots, which batches of small images cut off once, Pillow after the rows and after the columns
@pytest.mark.parametrize(("interpolation", "size"), [("bicubic", LARGE), ("bilinear", LARGE), ("bilinear", SMALL)])
def test_the_crop_is_torchvisions_and_nothing_else_is_done(interpolation: Interpolation, size: int) -> None:
    """The same box and flip through torchvision on Pillow."""
    images = photographs(6, size, size) if size == SMALL else photographs(6, 90, 120)
    crops = crops_of(ArraySource(images), size, batch_size=6, interpolation=interpolation)
    batch = next(crops.batches(0, 1))
    kind = crop_and_flip(size)
    flips = 0
    for index, ours in zip(batch.indices.tolist(), batch.images, strict=True):
        height, width = images.shape[1:3]
        drawn = draw_views([kind], seed=5, epoch=0, index=index, height=height, width=width)
        top, left, height, width = drawn.box[0].tolist()
        image = v2.functional.resized_crop(
            Image.fromarray(images[index]), top, left, height, width, [size, size], v2.InterpolationMode(interpolation)
        )
        image = v2.functional.horizontal_flip(image) if drawn.flip[0] else image
        flips += int(drawn.flip[0])
        theirs = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        made = (255 * ours).round() if ours.is_floating_point() else ours
        assert (made.int() - theirs.int()).abs().max() <= 1
    assert 0 < flips < 6


def test_distribution_of_the_draws() -> None:
    n = 20_000
    sizes = {"heights": np.full(n, 500), "widths": np.full(n, 500)}
    drawn = draw_view(crop_and_flip(96), seed=0, epoch=0, indices=np.arange(n), view=0, **sizes)
    area = drawn.box[:, 2] * drawn.box[:, 3] / 500**2
    assert 0.079 < area.min() < 0.09
    assert area.max() > 0.98
    assert drawn.flip.mean() == pytest.approx(0.5, abs=0.02)
    assert not any(drawn_.any() for drawn_ in (drawn.jitter, drawn.grey, drawn.blur, drawn.solarise))


def test_streams_of_crops_and_of_training_views_are_apart() -> None:
    keys = {purpose: int(key(0, purpose, 0, 0, 0)) for purpose in Purpose}
    assert len(set(keys.values())) == len(keys)
    where = {"seed": 0, "epoch": 0, "index": 7, "height": 90, "width": 90}
    view = view_kinds(Config(global_scale=(0.08, 1.0)))[0]
    assert not np.array_equal(draw_views([view], **where).box, draw_views([crop_and_flip(224)], **where).box)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small images", "photographs"])
def test_bad_images_are_left_out(tmp_path: Path, size: int) -> None:
    folder = write_images(tmp_path, tiny_images(COUNT, 90))
    whole = by_image(list(crops_of(FolderSource(folder), size).batches(0, 4)))
    bad = [0, 1, 2, 3, 9]
    for index in bad:
        sorted(folder.iterdir())[index].write_bytes(b"")
    source: Source = FolderSource(folder)
    source = hold_in_memory(source, size) if size == SMALL else source
    for batch_size in (1, 4, 100):  # batches without a single image that can be read, too
        crops = crops_of(source, size, batch_size=batch_size)
        batches = list(crops.batches(0, crops.steps_per_epoch))
        found = by_image(batches)
        assert found.keys() == {(0, index) for index in range(COUNT) if index not in bad}
        assert all(torch.equal(found[at], whole[at]) for at in found)
        lost = [image for batch in batches for image in batch.unreadable]
        assert sorted(image.index for image in lost) == bad
        assert {image.reason for image in lost} == {"the file is empty"}


def test_workers_keep_the_limit_of_pixels_and_report_errors_in_one_line(tmp_path: Path) -> None:
    source = FolderSource(write_images(tmp_path, tiny_images(3, 90)))
    with pixel_limit(1000):
        (batch,) = crops_of(source, LARGE, workers=1).batches(0, 1)
    assert len(batch.unreadable) == 3
    assert "max_image_pixels=1000" in batch.unreadable[0].reason

    class Broken(ArraySource):
        def fetch(self, index: int) -> np.ndarray:
            raise DataError("the shard is gone.")

    for workers in (0, 1):
        with pytest.raises(DataError, match=r"^the shard is gone\.$"):
            list(crops_of(Broken(tiny_images(3, 90)), LARGE, workers=workers).batches(0, 1))
