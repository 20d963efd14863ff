"""The transform of evaluation is torchvision's on Pillow's images, pixel for pixel."""

import io
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from carp.images.decoding.decode import decode
from carp.images.views.centre_crop import resize_and_crop
from tests.images.pictures import photographs

MODES = {"bicubic": transforms.InterpolationMode.BICUBIC, "bilinear": transforms.InterpolationMode.BILINEAR}


def by_torchvision(pixels, resize, size, interpolation):
    steps = [transforms.Resize(resize, interpolation=MODES[interpolation]), transforms.CenterCrop(size)]
    return np.array(transforms.Compose(steps)(Image.fromarray(pixels)))


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(max_examples=400, deadline=None)
@given(
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    resize=st.integers(1, 130),
    size=st.integers(1, 130),
    interpolation=st.sampled_from(list(MODES)),
    seed=st.integers(0, 100),
)
def test_every_size_equals_torchvisions_resize_and_centre_crop(height, width, resize, size, interpolation, seed):
    pixels = noise(height, width, seed)
    found = resize_and_crop(pixels, resize, size, interpolation)
    assert found.shape == (size, size, 3)
    np.testing.assert_array_equal(found, by_torchvision(pixels, resize, size, interpolation))


@settings(max_examples=150, deadline=None)
@given(
    short=st.integers(1, 40),
    ratio=st.floats(8, 60),
    upright=st.booleans(),
    resize=st.integers(1, 64),
    size=st.integers(1, 64),
    interpolation=st.sampled_from(list(MODES)),
)
def test_long_images_equal_torchvisions_too(short, ratio, upright, resize, size, interpolation):
    sides = short, int(short * ratio)
    pixels = noise(*(reversed(sides) if upright else sides))
    found = resize_and_crop(pixels, resize, size, interpolation)
    np.testing.assert_array_equal(found, by_torchvision(pixels, resize, size, interpolation))


@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (60, 84), (224, 224), (256, 256), (257, 999)])
@pytest.mark.parametrize(("resize", "size"), [(256, 224), (110, 96), (224, 224), (33, 32), (35, 32)])
def test_photographs_as_published_numbers_see_them(shape, resize, size):
    pixels = photographs(1, *shape)[0]
    np.testing.assert_array_equal(
        resize_and_crop(pixels, resize, size), by_torchvision(pixels, resize, size, "bicubic")
    )


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"quality": 30}], ids=str
)
@pytest.mark.parametrize("shape", [(300, 401), (333, 250), (61, 47)])
def test_from_a_jpeg_file_to_the_pixels_of_the_encoder_equals_pillow_and_torchvision(shape, options):
    buffer = io.BytesIO()
    Image.fromarray(photographs(1, *shape)[0]).save(buffer, "JPEG", **options)
    theirs = np.array(Image.open(buffer).convert("RGB"))
    np.testing.assert_array_equal(decode(buffer.getvalue(), ""), theirs)
    found = resize_and_crop(decode(buffer.getvalue(), ""), 256, 224)
    np.testing.assert_array_equal(found, by_torchvision(theirs, 256, 224, "bicubic"))


@pytest.mark.parametrize("shape", [(1, 400_001), (400_001, 1), (3, 300_001)])
def test_an_extremely_long_image_is_not_scaled_whole(shape):
    pixels = np.zeros((*shape, 3), dtype=np.uint8)
    middle = tuple(slice(max(0, side // 2 - 4), side // 2 + 5) for side in shape)
    pixels[middle] = noise(*pixels[middle].shape[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = resize_and_crop(pixels, 256, 224)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB; scaled whole it takes 70 GB
    near = by_torchvision(np.ascontiguousarray(pixels[middle]), 256, 224, "bicubic")
    assert np.abs(found.astype(int) - near).max() <= 1
