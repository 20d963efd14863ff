"""How much pixels agree, and what counts as a border."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from carp.images.decoding.decode import Pixels
from carp.similarity.look_alike import agreement, look_at, without_border


def picture(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((120, 90), Image.Resampling.BICUBIC)


def pixels(image: Image.Image) -> Pixels:
    return np.array(image)


def recompressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(file)


@pytest.mark.parametrize(
    "copy",
    [recompressed, ImageOps.mirror, ImageEnhance.Brightness(picture(0)).enhance(1.1), picture(0).resize((60, 45)),
     ImageOps.expand(picture(0), 12, "white")],
)  # fmt: skip
def test_copies_agree_and_others_do_not(copy: object) -> None:
    made = copy(picture(0)) if callable(copy) else copy
    assert isinstance(made, Image.Image)
    assert agreement([look_at(pixels(picture(0))), look_at(pixels(made))]) > 0.97
    assert agreement([look_at(pixels(picture(1))), look_at(pixels(made))]) < 0.6


def test_a_group_is_as_certain_as_its_weakest_link() -> None:
    looks = [look_at(pixels(picture(seed))) for seed in (0, 0, 1, 1)]
    between = agreement([looks[0], looks[2]])
    assert agreement(looks) == pytest.approx(between)
    assert agreement(looks[:2]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("border", [(5, 5, 5, 5), (0, 20, 0, 20), (10, 0, 0, 0)])
def test_borders_of_one_colour_do_not_count(border: tuple[int, int, int, int]) -> None:
    framed = ImageOps.expand(picture(3), border, (12, 200, 31))
    assert without_border(pixels(framed)).shape == (90, 120, 3)


def test_an_image_of_one_colour_keeps_its_size() -> None:
    plain = np.full((20, 30, 3), 7, dtype=np.uint8)
    assert without_border(plain).shape == (20, 30, 3)
    assert np.isfinite(look_at(plain).grey).all()
