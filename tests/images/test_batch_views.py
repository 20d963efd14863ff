"""Views of whole batches: each operation against Pillow and torchvision."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

from carp.config import Config
from carp.images.views.batch_views import batch_views
from carp.images.views.view_parameters import BRIGHTNESS, CONTRAST, HUE, SATURATION, view_kinds
from tests.images.pictures import NOTHING, as_floats, drawn, photographs, soft_photographs

FLOAT = 1e-5  # float32 against float32
BYTE = 0.5 / 255 + 1e-6  # rounding to bytes once


def render(images, kind, **where):
    (view,) = batch_views(images, [kind], indices=np.arange(len(images)), **{"seed": 0, "epoch": 0, **where})
    return view


def test_with_everything_off_a_view_is_the_image_to_the_bit():
    images = photographs()
    assert torch.equal(render(images, NOTHING), as_floats(images))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 40), (20, 60)])
@pytest.mark.parametrize("size", [24, 64])
def test_crop_and_resize_equal_torchvisions_antialiased_bicubic_resize_of_the_cut_box(height, width, size):
    images = photographs(24, height, width)
    kind = replace(NOTHING, size=size, scale=(0.05, 1.0))
    views, boxes = render(images, kind), drawn(images, kind).box
    for image, view, (top, left, h, w) in zip(as_floats(images), views, boxes, strict=True):
        cut = image[:, top : top + h, left : left + w]
        expected = TF.resize(cut, [size, size], InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
        torch.testing.assert_close(view, expected, rtol=0, atol=FLOAT)


TWICE_ROUNDED = 1.5  # of 255: Pillow rounds to bytes after either pass


def test_crop_and_resize_equal_pillows_bicubic_resize_of_the_cut_box():
    images = soft_photographs(24, 48, 40)
    kind = replace(NOTHING, scale=(0.05, 1.0))
    views, boxes = render(images, kind), drawn(images, kind).box
    for image, view, (top, left, h, w) in zip(images, views, boxes, strict=True):
        cut = Image.fromarray(image).crop((left, top, left + w, top + h))
        expected = as_floats(np.array(cut.resize((32, 32), Image.Resampling.BICUBIC))[None])[0]
        assert float((view - expected).abs().max()) * 255 < TWICE_ROUNDED


def test_away_from_its_border_a_crop_equals_pillows_resize_with_box():
    images = soft_photographs(24, 48, 40)
    kind = replace(NOTHING, scale=(0.2, 1.0))
    views, boxes = render(images, kind), drawn(images, kind).box
    for image, view, (top, left, h, w) in zip(images, views, boxes, strict=True):
        box = (left, top, left + w, top + h)
        whole = Image.fromarray(image).resize((32, 32), Image.Resampling.BICUBIC, box=box)
        # The kernel reaches two source pixels past the border of the box, which only Pillow's `box` lets it see
        edge = math.ceil(2 * max(1, 32 / min(h, w)))
        expected = as_floats(np.array(whole)[None])[0]
        inner = (slice(None), slice(edge, -edge), slice(edge, -edge))
        assert float((view[inner] - expected[inner]).abs().max()) * 255 < TWICE_ROUNDED


def test_flip_mirrors_the_columns_of_about_half_the_images():
    images = photographs(64)
    kind = replace(NOTHING, flip=0.5)
    views, flips = render(images, kind), drawn(images, kind).flip
    assert 16 < flips.sum() < 48
    for image, view, flipped in zip(as_floats(images), views, flips, strict=True):
        assert torch.equal(view, image.flip(-1) if flipped else image)


def test_a_flipped_crop_is_the_mirror_of_the_crop():
    images = photographs(8, 48, 40)
    kind = replace(NOTHING, scale=(0.1, 0.8))
    torch.testing.assert_close(render(images, replace(kind, flip=1)), render(images, kind).flip(-1), rtol=0, atol=FLOAT)


JITTERS = {
    "brightness": (BRIGHTNESS, TF.adjust_brightness, 0.4),
    "contrast": (CONTRAST, TF.adjust_contrast, 0.4),
    "saturation": (SATURATION, TF.adjust_saturation, 0.9),
    "hue": (HUE, TF.adjust_hue, 0.5),
}


@pytest.mark.parametrize("name", list(JITTERS))
def test_a_colour_operation_alone_equals_torchvisions(name):
    number, adjust, strength = JITTERS[name]
    images = photographs(24)
    strengths = [0.0] * 4
    strengths[number] = strength
    kind = replace(NOTHING, jitter=1.0, strength=tuple(strengths))
    views, factors = render(images, kind), drawn(images, kind).factors[:, number]
    assert np.ptp(factors) > strength  # the factors differ from image to image
    for image, view, factor in zip(as_floats(images), views, factors, strict=True):
        torch.testing.assert_close(view, adjust(image, float(factor)), rtol=0, atol=FLOAT)
    assert float((views - as_floats(images)).abs().mean()) > 0.01


def test_hue_keeps_greys_and_turns_pure_colours_as_torchvision_does():
    colours = [
        (0, 0, 0),
        (255, 255, 255),
        (90, 90, 90),
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (255, 255, 0),
        (9, 8, 9),
    ]
    images = np.array(colours, dtype=np.uint8)[:, None, None].repeat(32, axis=1).repeat(32, axis=2)
    kind = replace(NOTHING, jitter=1.0, strength=(0, 0, 0, 0.5))
    views, shifts = render(images, kind), drawn(images, kind).factors[:, HUE]
    for image, view, shift in zip(as_floats(images), views, shifts, strict=True):
        torch.testing.assert_close(view, TF.adjust_hue(image, float(shift)), rtol=0, atol=FLOAT)


def test_the_four_colour_operations_are_applied_in_the_drawn_order():
    images = photographs(48)
    kind = replace(NOTHING, jitter=1.0, strength=(0.4, 0.4, 0.2, 0.1))
    views, parameters = render(images, kind), drawn(images, kind)
    adjust = {number: function for number, function, _ in JITTERS.values()}
    assert len({tuple(order) for order in parameters.order}) > 12
    for i, image in enumerate(as_floats(images)):
        expected = image
        for number in parameters.order[i]:
            expected = adjust[number](expected, float(parameters.factors[i, number]))
        torch.testing.assert_close(views[i], expected, rtol=0, atol=2 * FLOAT)


def test_jitter_leaves_the_images_it_does_not_choose():
    images = photographs(64)
    kind = replace(NOTHING, jitter=0.5, strength=(0.4, 0.4, 0.2, 0.1))
    same = (render(images, kind) == as_floats(images)).flatten(1).all(dim=1)
    assert same.tolist() == (~drawn(images, kind).jitter).tolist()


def test_grey_equals_torchvisions_and_pillows_on_the_chosen_images():
    images = photographs(32)
    kind = replace(NOTHING, grey=0.5)
    views, chosen = render(images, kind), drawn(images, kind).grey
    assert 4 < chosen.sum() < 28
    for i, image in enumerate(as_floats(images)):
        expected = TF.rgb_to_grayscale(image, num_output_channels=3) if chosen[i] else image
        torch.testing.assert_close(views[i], expected, rtol=0, atol=FLOAT)
        if chosen[i]:
            pillow = torch.from_numpy(np.array(Image.fromarray(images[i]).convert("L"))) / 255
            # Pillow rounds, and its red weight is 0.299 where torchvision's is 0.2989
            torch.testing.assert_close(views[i, 0], pillow, rtol=0, atol=BYTE + 1e-4)


def test_solarise_equals_pillow_and_torchvision_to_the_bit_for_every_byte():
    ramp = np.arange(32 * 32 * 3, dtype=np.int64).reshape(1, 32, 32, 3).astype(np.uint8)  # all 256 values
    kind = replace(NOTHING, solarise=1.0)
    view = render(ramp, kind)
    pillow = np.array(ImageOps.solarize(Image.fromarray(ramp[0]), 128))
    assert torch.equal((view * 255).round().to(torch.uint8)[0], torch.from_numpy(pillow).permute(2, 0, 1))
    torch.testing.assert_close(view[0], TF.solarize(as_floats(ramp)[0], 128 / 255), rtol=0, atol=1e-7)


def test_blur_equals_torchvisions_away_from_the_border():
    images = photographs(12, 64, 64)
    kind = replace(NOTHING, size=64, blur=1.0)
    views, sigmas = render(images, kind), drawn(images, kind).sigma
    inner = slice(16, -16)
    for image, view, sigma in zip(as_floats(images), views, sigmas, strict=True):
        expected = TF.gaussian_blur(image, [31, 31], [float(sigma)] * 2)
        torch.testing.assert_close(view[:, inner, inner], expected[:, inner, inner], rtol=0, atol=FLOAT)


def test_blur_keeps_an_even_image_up_to_its_border():
    images = np.full((8, 32, 32, 3), 200, dtype=np.uint8)
    torch.testing.assert_close(render(images, replace(NOTHING, blur=1.0)), as_floats(images), rtol=0, atol=FLOAT)


def test_views_are_float_squares_between_zero_and_one_and_local_ones_have_their_own_size():
    images = photographs(16, 48, 40)
    kinds = view_kinds(Config(global_size=32, local_size=16, local_views=3))
    views = batch_views(images, kinds, seed=0, epoch=0, indices=np.arange(16))
    assert [tuple(view.shape) for view in views] == [(16, 3, 32, 32)] * 2 + [(16, 3, 16, 16)] * 3
    for view in views:
        assert view.dtype == torch.float32
        assert float(view.min()) >= -1e-6
        assert float(view.max()) <= 1 + 1e-6


def test_a_view_does_not_depend_on_the_batch_it_is_rendered_in():
    images = photographs(16)
    kinds = view_kinds(Config(global_size=32, local_size=16, local_views=1))
    together = batch_views(images, kinds, seed=3, epoch=2, indices=np.arange(16))
    chosen = np.array([11, 2, 7])
    apart = batch_views(images[chosen], kinds, seed=3, epoch=2, indices=chosen)
    for all_of_them, some in zip(together, apart, strict=True):
        torch.testing.assert_close(some, all_of_them[torch.from_numpy(chosen)], rtol=0, atol=FLOAT)


def test_rendering_does_not_change_the_images():
    images = photographs(4)
    before = images.copy()
    batch_views(images, view_kinds(Config(global_size=32)), seed=0, epoch=0, indices=np.arange(4))
    assert np.array_equal(images, before)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 40), (40, 1)])
def test_images_of_one_pixel_a_side_can_be_rendered(height, width):
    images = photographs(8, height, width)
    kinds = view_kinds(Config(global_size=16, local_size=8, local_views=1))
    for view in batch_views(images, kinds, seed=0, epoch=0, indices=np.arange(8)):
        assert bool(torch.isfinite(view).all())
