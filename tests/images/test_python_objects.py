"""Datasets and sequences from Python: every kind of item becomes the same pixels, labels are found."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import carp
from carp.errors import DataError, UnreadableImageError
from carp.images.loading.in_memory import hold_in_memory
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources.given_images import GivenImages
from carp.images.sources.python_objects import MapStyleSource
from tests.helpers import tiny_images, write_images, write_recipe

IMAGES = tiny_images(6)


class Pairs(Dataset):
    """A dataset as people write it."""

    def __init__(self, images=IMAGES, labels=(1, 0, 1, 2, 0, 1)):
        self.images, self.hidden = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return Image.fromarray(self.images[index]), self.hidden[index]


@pytest.mark.parametrize(
    "item",
    [
        lambda image: image,
        Image.fromarray,
        lambda image: (Image.fromarray(image), 3),
        lambda image: [image, "cat", "more"],
        lambda image: torch.from_numpy(image).permute(2, 0, 1),
        lambda image: torch.from_numpy(image).permute(2, 0, 1).float() / 255,
        lambda image: (torch.from_numpy(image).permute(2, 0, 1).double() / 255, torch.tensor(2)),
        lambda image: image.astype(np.float32) / 255,
        lambda image: np.dstack([image, image[..., :1]]),
        lambda image: Image.fromarray(np.dstack([image, np.full_like(image[..., :1], 255)])),
    ],
)
def test_every_kind_of_item_gives_the_same_pixels(item):
    source = open_source([item(image) for image in IMAGES])
    assert isinstance(source, MapStyleSource)
    assert len(source) == 6
    for i, image in enumerate(IMAGES):
        pixels = read(source, i)
        assert pixels.flags["C_CONTIGUOUS"]
        assert np.array_equal(pixels, image)


@pytest.mark.parametrize("item", [IMAGES[0, :, :, 0], IMAGES[0, :, :, :1], torch.from_numpy(IMAGES[0, :, :, 0])[None]])
def test_greyscale_becomes_three_equal_channels(item):
    assert np.array_equal(read(open_source([item]), 0), np.repeat(IMAGES[0, :, :, :1], 3, axis=-1))


def test_paths_are_read(tmp_path):
    write_images(tmp_path, IMAGES)
    source = open_source([str(tmp_path / "000.png"), tmp_path / "001.png", tmp_path / "absent.png"])
    assert np.array_equal(read(source, 1), IMAGES[1])
    with pytest.raises(UnreadableImageError, match=r"absent\.png: there is no such file"):
        read(source, 2)


def test_labels_come_from_the_items():
    source = open_source(Pairs())
    assert source.labels.tolist() == [1, 0, 1, 2, 0, 1]
    assert source.classes == ("0", "1", "2")
    words = open_source(Pairs(labels=["b", "a", "b", "a", "b", "a"]))
    assert words.classes == ("a", "b")
    assert words.labels.tolist() == [1, 0, 1, 0, 1, 0]
    tensors = open_source(TensorDataset(torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.tensor([0, 1, 0, 1, 0, 1])))
    assert tensors.labels.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("labels", [[None] * 6, [1.5] * 6, [1, 2, 3, None, 1, 2], [torch.ones(2)] * 6])
def test_labels_are_numbers_or_words(labels):
    source = open_source(Pairs(labels=labels))
    assert source.labels is None
    assert source.classes == ()


@pytest.mark.parametrize("name", ["targets", "labels", "_labels"])
def test_a_list_of_labels_and_names_is_taken_without_reading_an_image(name):
    dataset = Pairs()
    dataset.classes = ["cat", "dog", "emu"]
    setattr(dataset, name, torch.tensor([2, 0, 1, 1, 1, 1]) if name == "labels" else [2, 0, 1, 1, 1, 1])
    dataset.images = [None] * 6  # would fail
    source = open_source(dataset)
    assert source.labels.tolist() == [2, 0, 1, 1, 1, 1]
    assert source.classes == ("cat", "dog", "emu")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (torch.randn(3, 8, 8), "between 0 and 1: give images that are not normalised"),
        (torch.full((3, 8, 8), float("nan")), "not between 0 and 1"),
        (np.zeros((8, 8, 2), np.uint8), r"its shape is \[8, 8, 2\]"),
        (np.zeros((0, 8, 3), np.uint8), r"its shape is \[0, 8, 3\]"),
        (np.zeros((8, 8, 3), np.int64), "it has int64 values"),
        (7, "it is a int, not a PIL image"),
        ({"image": 1}, "it is a dict"),
    ],
)
def test_items_that_are_not_images_are_unreadable_for_a_reason(item, reason):
    with pytest.raises(UnreadableImageError, match=rf"list\[1\]: .*{reason}") as raised:
        open_source([IMAGES[0], item]).fetch(1)
    assert "\n" not in str(raised.value)


def test_an_exception_of_the_data_set_makes_its_image_unreadable():
    source = open_source(Pairs(labels=[0]))
    with pytest.raises(UnreadableImageError, match=r"Pairs\[3\]: IndexError: "):
        source.fetch(3)


@pytest.mark.parametrize("data", [7, {"a": 1}, iter([1]), b"bytes"])
def test_objects_without_items_by_number_are_refused(data):
    with pytest.raises(DataError, match=r"images from a .*: give a path"):
        open_source(data)


def test_a_stream_and_an_empty_data_set_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield IMAGES[0]

    with pytest.raises(DataError, match="images from a Stream"):
        open_source(Stream())
    with pytest.raises(DataError, match="there are no images in list"):
        open_source([])


def test_the_fingerprint_follows_the_images():
    assert open_source(Pairs()).fingerprint == open_source(Pairs()).fingerprint
    assert open_source(Pairs(tiny_images(6, seed=1))).fingerprint != open_source(Pairs()).fingerprint
    assert open_source(Pairs(IMAGES[:5])).fingerprint != open_source(Pairs()).fingerprint


def test_a_data_set_trains_and_is_held_in_memory(tmp_path):
    dataset = Pairs(tiny_images(), [i % 2 for i in range(64)])
    assert np.array_equal(hold_in_memory(open_source(dataset), 32).images, tiny_images())
    run = carp.train(dataset, tmp_path / "run", write_recipe(tmp_path / "r.yaml"), quiet=True, epochs=1)
    result = carp.evaluate("knn", run.folder, dataset, k=3)
    assert 0 <= result.values["top1@3"] <= 1


def test_an_item_that_cannot_be_read_does_not_cost_the_labels_of_the_others():
    class Broken:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 0:
                raise KeyError("gone")
            return np.zeros((8, 8, 3), dtype=np.uint8), "ab"[index % 2]

    source = open_source(Broken())
    assert source.classes == ("a", "b")
    assert source.labels[1:].tolist() == [1, 0, 1]


def test_a_list_with_something_else_than_images() -> None:
    with pytest.raises(DataError, match=r"a path, a PIL image or an array.*received int"):
        GivenImages([5]).fetch(0)  # type: ignore[list-item]
