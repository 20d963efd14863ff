"""Images by name."""

from pathlib import Path

import numpy as np
import pytest

from carp.errors import DataError
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import NameIndex, by_name, names_of
from tests.helpers import tiny_images, write_images


def test_every_spelling_finds_the_image(tmp_path: Path) -> None:
    images = tiny_images(6)
    source = open_source(write_images(tmp_path, images, classes=2))
    assert names_of(source)[0] == "class-0/000.png"
    part = by_name(source, ["class-0/002.png", "class-1/003", "005.png", "000", "000"], named_by="a list")
    assert len(part) == 5
    for place, index in enumerate([2, 3, 5, 0, 0]):
        assert np.array_equal(read(part, place), images[index])


def test_names_of_images_in_memory() -> None:
    assert names_of(ArraySource(tiny_images(2), name="it")) == ["it[0]", "it[1]"]


def test_a_name_may_be_in_doubt_but_not_a_whole_path() -> None:
    index = NameIndex(["a/x.jpg", "b/x.jpg", "x.jpg"], where="here")
    assert index.find(["b/x.jpg", "x.jpg", "a/x"], named_by="it").tolist() == [1, 2, 0]
    with pytest.raises(DataError, match=r"'x', which it names, matches more than one image in here: .*its folder"):
        index.find(["x"], named_by="it")


def test_missing_images_are_counted() -> None:
    index = NameIndex(["abbey_01.jpg", "abbey_02.jpg"], where="here")
    with pytest.raises(
        DataError, match=r"2 of the 3 images that it names are not in here; the first is 'abby_01'\. Did"
    ):
        index.find(["abbey_02", "abby_01", "z"], named_by="it")
