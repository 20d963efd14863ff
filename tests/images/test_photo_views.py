"""Views of photographs: each operation against torchvision's and Pillow's, and what decoding at reduced size changes.

Tolerances are in grey levels (of 255). Exact values are torchvision's on floats, which rounds nowhere.
"""

import io
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import functional as TF

from carp.config import Config
from carp.images.decoding.decode import open_photo
from carp.images.views import photo_views as module
from carp.images.views.batch_views import batch_views
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import BRIGHTNESS, CONTRAST, HUE, SATURATION, draw_view, view_kinds
from tests.images.pictures import NOTHING, photographs, real_photographs, soft_photographs

ROUNDED = 0.51  # bytes rounded once
PILLOWS = 1.0  # torchvision on Pillow cuts off where we round


def squares(size=224):
    """Whole squares, so that nothing is cropped or resized."""
    return [x[: min(x.shape[:2]), : min(x.shape[:2])][:size, :size].copy() for x in real_photographs()]


PICTURES = {"generated": list(photographs(6, 224, 224)), "real": squares()}
each_picture = pytest.mark.parametrize("pictures", list(PICTURES), ids=list(PICTURES))


def pictures_of(name):
    if not PICTURES[name]:
        pytest.skip("scikit-image, whose photographs are used, is not installed")
    return PICTURES[name]


def one_view(stored, kind, index=0, **where):
    (view,) = photo_views(stored, "test", [kind], index=index, **{"seed": 0, "epoch": 0, **where})
    assert view.dtype == torch.uint8
    assert view.shape == (3, kind.size, kind.size)
    return view.permute(1, 2, 0).numpy()


def parameters(stored, kind, index=0):
    height, width, _ = stored.shape
    return draw_view(kind, seed=0, epoch=0, indices=index, view=0, heights=height, widths=width)


def exact(picture, operation):
    """A torchvision operation on floats, in grey levels."""
    x = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
    return (operation(x).clamp(0, 1) * 255).permute(1, 2, 0).numpy()


def on_pillow(picture, operation):
    return np.array(operation(Image.fromarray(picture))).astype(np.float32)


def orientation(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def jpeg(pixels, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


# Each operation alone


@each_picture
def test_with_everything_off_a_view_is_the_image_to_the_bit(pictures):
    for picture in pictures_of(pictures):
        assert np.array_equal(one_view(picture, replace(NOTHING, size=224)), picture)


@each_picture
@pytest.mark.parametrize("size", [32, 96, 224, 300])
def test_crop_and_resize_equal_pillows_bicubic_resize_of_the_cut_box(pictures, size):
    kind = replace(NOTHING, size=size, scale=(0.05, 1.0))
    for index, bright in enumerate(pictures_of(pictures) * 4):
        picture = (bright * 0.45 + 70).astype(np.uint8)  # no overshoot is clipped, so that only rounding differs
        top, left, height, width = parameters(picture, kind, index).box[0]
        cut = Image.fromarray(picture).crop((left, top, left + width, top + height))
        expected = np.array(cut.resize((size, size), Image.Resampling.BICUBIC)).astype(int)
        view = one_view(picture, kind, index)
        assert np.abs(view - expected).max() <= 2  # both round after either pass
        truth = exact(np.array(cut), lambda x: TF.resize(x, [size, size], TF.InterpolationMode.BICUBIC, antialias=True))
        assert np.abs(view - truth).mean() < 0.35


def test_a_photograph_alone_and_in_a_batch_is_cut_and_resized_alike():
    # "A view is the same whoever renders it" (view_parameters): pixels outside the box belong to neither.
    images = soft_photographs(24, 48, 40)
    kind = replace(NOTHING, scale=(0.05, 1.0))
    (batch,) = batch_views(images, [kind], seed=0, epoch=0, indices=np.arange(24))
    for index, image in enumerate(images):
        alone = torch.from_numpy(one_view(image, kind, index)).permute(2, 0, 1)
        assert float((alone.float() - 255 * batch[index]).abs().max()) < 1.5  # rounded to bytes after either pass


@each_picture
def test_flip_mirrors_the_columns_when_drawn(pictures):
    kind = replace(NOTHING, size=224, flip=0.5)
    flips = []
    for index, picture in enumerate(pictures_of(pictures) * 4):
        flips.append(bool(parameters(picture, kind, index).flip[0]))
        assert np.array_equal(one_view(picture, kind, index), picture[:, ::-1] if flips[-1] else picture)
    assert len(set(flips)) == 2


JITTERS = {
    "brightness": (BRIGHTNESS, TF.adjust_brightness, 0.4, ROUNDED),
    "contrast": (CONTRAST, TF.adjust_contrast, 0.4, 0.6),  # of the mean of rounded greys
    "saturation": (SATURATION, TF.adjust_saturation, 0.9, 0.8),
}


@each_picture
@pytest.mark.parametrize("name", list(JITTERS))
def test_brightness_contrast_and_saturation_equal_torchvisions(name, pictures):
    number, adjust, strength, tolerance = JITTERS[name]
    strengths = [0.0] * 4
    strengths[number] = strength
    kind = replace(NOTHING, size=224, jitter=1.0, strength=tuple(strengths))
    changes = []
    for index, picture in enumerate(pictures_of(pictures)):
        factor = float(parameters(picture, kind, index).factors[0, number])
        view = one_view(picture, kind, index).astype(np.float32)
        assert np.abs(view - exact(picture, lambda x, f=factor: adjust(x, f))).max() <= tolerance
        assert np.abs(view - on_pillow(picture, lambda x, f=factor: adjust(x, f))).max() <= PILLOWS
        changes.append(np.abs(view - picture).mean())
    assert np.mean(changes) > 1


@each_picture
def test_hue_equals_torchvisions_more_closely_than_on_pillow(pictures):
    # Hues are bytes on the way, as in Pillow. A step of a byte is up to six levels; a half is lost to either of two
    # roundings, and a whole where the circle closes.
    ours, theirs = [], []
    for shift in (-0.5, -0.1, -0.04, 0.02, 0.1, 0.3):
        for picture in pictures_of(pictures):
            expected = exact(picture, lambda x, s=shift: TF.adjust_hue(x, s))
            ours.append(np.abs(module._hue(picture, shift) - expected))
            theirs.append(np.abs(on_pillow(picture, lambda x, s=shift: TF.adjust_hue(x, s)) - expected))
            assert ours[-1].mean() < 1
            assert ours[-1].max() <= 12
    assert np.mean([x.mean() for x in ours]) < np.mean([x.mean() for x in theirs])


def test_hue_keeps_greys_and_a_turn_of_nothing_keeps_all():
    greys = np.arange(256, dtype=np.uint8)[:, None, None].repeat(3, axis=2)
    assert np.array_equal(module._hue(greys, 0.3), greys)
    (picture,) = photographs(1, 64, 64)
    assert np.array_equal(module._hue(picture, 0.001), picture)


def test_the_four_colour_operations_are_applied_in_the_drawn_order():
    kind = replace(NOTHING, size=224, jitter=1.0, strength=(0.4, 0.4, 0.2, 0.0))
    picture = PICTURES["generated"][0]
    adjust = {number: function for number, function, _, _ in JITTERS.values()}
    orders, other_order = set(), 0
    for index in range(24):
        drawn = parameters(picture, kind, index)
        order = [int(n) for n in drawn.order[0] if n != HUE]
        orders.add(tuple(order))
        view = one_view(picture, kind, index).astype(np.float32)

        def in_order(x, order=order, drawn=drawn):
            for number in order:
                x = adjust[number](x, float(drawn.factors[0, number]))
            return x

        assert np.abs(view - exact(picture, in_order)).max() <= 2.5  # rounded three times, then enlarged
        backwards = exact(picture, lambda x, o=order[::-1], d=drawn: in_order(x, o, d))
        other_order += bool(np.abs(view - backwards).max() > 5)
    assert len(orders) == 6
    assert other_order > 12  # so that the comparison means something


@each_picture
def test_grey_equals_pillows(pictures):
    for picture in pictures_of(pictures):
        view = one_view(picture, replace(NOTHING, size=224, grey=1.0)).astype(np.float32)
        assert np.abs(view - on_pillow(picture, lambda x: TF.to_grayscale(x, 3))).max() <= 1
        assert np.abs(view - exact(picture, lambda x: TF.rgb_to_grayscale(x, 3))).max() <= 0.6


@each_picture
def test_blur_equals_torchvisions_up_to_the_border(pictures):
    kind = replace(NOTHING, size=224, blur=1.0)
    for index, picture in enumerate(pictures_of(pictures) * 3):
        sigma = float(parameters(picture, kind, index).sigma[0])
        view = one_view(picture, kind, index).astype(np.float32)
        expected = exact(picture, lambda x, s=sigma: TF.gaussian_blur(x, [25, 25], [s, s]))
        assert np.abs(view - expected).max() <= 1.5  # the kernel ends at three deviations
        assert np.abs(view - expected).mean() <= 0.3


def test_solarise_equals_pillows_to_the_bit_for_every_byte():
    ramp = np.arange(32 * 32 * 3, dtype=np.int64).reshape(32, 32, 3).astype(np.uint8)
    expected = np.array(ImageOps.solarize(Image.fromarray(ramp), 128))
    assert np.array_equal(one_view(ramp, replace(NOTHING, solarise=1.0)), expected)


def test_grey_comes_before_blur_and_blur_before_solarise():
    kind = replace(NOTHING, size=224, grey=1.0, blur=1.0, solarise=1.0)
    picture = PICTURES["generated"][0]
    sigma = float(parameters(picture, kind).sigma[0])
    x = one_view(picture, replace(NOTHING, size=224, grey=1.0))
    x = module._blur(x, sigma)
    assert np.array_equal(one_view(picture, kind), np.array(ImageOps.solarize(Image.fromarray(x), 128)))


# What views depend on


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 40), (40, 1), (2, 3000)])
def test_images_of_one_pixel_a_side_can_be_rendered(height, width):
    kinds = view_kinds(Config(global_size=72, local_size=8, local_views=1))
    (image,) = photographs(1, height, width)
    for stored in (image, jpeg(image)):
        for view in photo_views(stored, "", kinds, seed=0, epoch=0, index=0):
            assert view.dtype == torch.uint8


def test_views_do_not_depend_on_threads_and_use_one():
    kinds = view_kinds(Config(local_views=2))
    stored = jpeg(photographs(1, 375, 500)[0])

    def views(opencv, pytorch):
        before = torch.get_num_threads()
        cv2.setNumThreads(opencv)
        torch.set_num_threads(pytorch)
        try:
            return photo_views(stored, "", kinds, seed=0, epoch=0, index=0)
        finally:
            assert cv2.getNumThreads() == 1
            torch.set_num_threads(before)

    for one, several in zip(views(1, 1), views(4, 3), strict=True):
        assert torch.equal(one, several)


def test_arrays_of_any_layout_are_taken_and_left_as_they_are():
    (image,) = photographs(1, 100, 120)
    kinds = view_kinds(Config(global_size=72))
    expected = photo_views(image.copy(), "", kinds, seed=0, epoch=0, index=0)
    fixed = image.copy()
    fixed.flags.writeable = False
    for same in (fixed, image[::-1].copy()[::-1], np.asfortranarray(image)):
        before = same.copy()
        for ours, theirs in zip(photo_views(same, "", kinds, seed=0, epoch=0, index=0), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert np.array_equal(same, before)


# Decoding no more than is needed


def reductions(monkeypatch):
    """Record at which part of its size an image is decoded."""
    asked = []
    opened = module.open_photo

    def recording(stored, place):
        photo = opened(stored, place)
        return replace(photo, pixels=lambda n: (asked.append(n), photo.pixels(n))[1])

    monkeypatch.setattr(module, "open_photo", recording)
    return asked


@pytest.mark.parametrize(("size", "scale", "expected"), [(64, 1.0, 8), (100, 1.0, 4), (200, 1.0, 2), (300, 1.0, 1)])
def test_a_jpeg_is_decoded_no_larger_than_the_views_need(size, scale, expected, monkeypatch):
    asked = reductions(monkeypatch)
    stored = jpeg(photographs(1, 520, 520)[0])
    one_view(stored, replace(NOTHING, size=size, scale=(scale, scale)))
    assert asked == [expected]


def test_the_view_that_needs_most_decides(monkeypatch):
    asked = reductions(monkeypatch)
    stored = jpeg(photographs(1, 520, 520)[0])
    kinds = [replace(NOTHING, size=60), replace(NOTHING, size=250)]
    photo_views(stored, "", kinds, seed=0, epoch=0, index=0)
    assert asked == [2]


@pytest.mark.parametrize("reduce", [2, 4, 8])
@pytest.mark.parametrize("turn", [1, 3, 6])
def test_reduced_decoding_changes_views_only_slightly(turn, reduce):
    # The edges of a crop move by half a reduced pixel at most; within it the change of a photograph is about a level.
    images = real_photographs() or list(photographs(4, 500, 620))
    changes = []
    for index, pixels in enumerate(images):
        whole = [side // 8 * 8 if turn != 1 else side for side in pixels.shape[:2]]
        photo = open_photo(jpeg(pixels[: whole[0], : whole[1]], exif=orientation(turn), quality=95), "")
        kind = replace(NOTHING, size=photo.height // reduce // 2, scale=(0.5, 1.0))
        box = draw_view(kind, seed=0, epoch=0, indices=index, view=0, heights=photo.height, widths=photo.width).box
        reduced = module._reduce(box, reduce)[0]
        aligned = reduced * reduce
        assert np.abs(aligned[:2] - box[0, :2]).max() <= reduce / 2
        assert np.abs(aligned[:2] + aligned[2:] - box[0, :2] - box[0, 2:]).max() <= reduce / 2
        small = module._crop(photo.pixels(reduce), reduced, kind.size).astype(np.float32)
        full = module._crop(photo.pixels(1), aligned, kind.size).astype(np.float32)
        changes.append(np.abs(small - full).mean())
    assert 0 < np.mean(changes) < 1.5


def test_a_turned_jpeg_whose_sides_cannot_be_divided_is_decoded_whole():
    (image,) = photographs(1, 401, 300)
    assert open_photo(jpeg(image), "").pixels(4).shape == (101, 75, 3)
    assert open_photo(jpeg(image[:400], exif=orientation(6)), "").pixels(4).shape == (75, 100, 3)
    assert open_photo(jpeg(image, exif=orientation(6)), "").pixels(4).shape == (300, 401, 3)


def test_a_jpeg_that_needs_all_its_pixels_gives_the_views_of_its_decoded_pixels():
    stored = jpeg(photographs(1, 375, 500)[0])
    decoded = np.array(Image.open(io.BytesIO(stored)))
    kinds = view_kinds(Config(local_views=2))
    for epoch in range(3):
        ours = photo_views(stored, "", kinds, seed=0, epoch=epoch, index=1)
        theirs = photo_views(decoded, "", kinds, seed=0, epoch=epoch, index=1)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
