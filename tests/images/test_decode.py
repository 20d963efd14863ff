"""Decoding: every kind of image comes out as upright RGB bytes, as Pillow's where Pillow is right."""

import io
import warnings

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from carp.errors import UnreadableImageError
from carp.images.decoding.decode import decode, open_photo, pixel_limit, size_of
from tests.images.pictures import photographs

PICTURE = photographs(1, 60, 84)[0]
NEAR = 1  # builds of libjpeg may round differently; here they are the same to the bit


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def by_pillow(stored):
    with Image.open(io.BytesIO(stored)) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def distance(a, b):
    assert a.shape == b.shape
    assert a.dtype == b.dtype == np.uint8
    return int(np.abs(a.astype(int) - b).max())


# JPEG


@pytest.mark.parametrize("size", [(84, 60), (83, 59), (1, 1), (17, 200)])
@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30, "subsampling": 1}])
def test_a_jpeg_decodes_as_pillow_does(size, options):
    stored = encoded(Image.fromarray(PICTURE).resize(size), "JPEG", **options)
    assert distance(decode(stored, ""), by_pillow(stored)) <= NEAR


def test_jpegs_in_grey_and_in_plain_rgb_decode_as_pillow_does():
    image = Image.fromarray(PICTURE)
    for stored in (encoded(image.convert("L"), "JPEG"), encoded(image, "JPEG", keep_rgb=True)):
        assert distance(decode(stored, ""), by_pillow(stored)) <= NEAR


def test_a_cmyk_jpeg_as_adobe_inverts_it_has_its_colours():
    stored = encoded(Image.fromarray(PICTURE).convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in stored
    assert np.abs(decode(stored, "").astype(int) - PICTURE).mean() < 3


@pytest.mark.parametrize("reduce", [1, 2, 4, 8])
def test_a_jpeg_at_a_part_of_its_size_is_pillows_draft(reduce):
    stored = encoded(Image.fromarray(PICTURE).resize((160, 88)), "JPEG")
    with Image.open(io.BytesIO(stored)) as image:
        image.draft("RGB", (160 // reduce, 88 // reduce))
        expected = np.array(image)
    assert expected.shape == (88 // reduce, 160 // reduce, 3)
    assert distance(open_photo(stored, "").pixels(reduce), expected) <= NEAR


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_every_exif_orientation_is_turned_upright(kind, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"lossless": True} if kind == "WEBP" else {}
    stored = encoded(Image.fromarray(PICTURE), kind, exif=exif, **options)
    assert distance(decode(stored, ""), by_pillow(stored)) <= NEAR
    photo = open_photo(stored, "")
    assert (photo.height, photo.width) == decode(stored, "").shape[:2]
    assert ((photo.height, photo.width) == (84, 60)) == (turn >= 5)


def test_an_orientation_that_is_none_or_cannot_be_read_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 77
    stored = encoded(Image.fromarray(PICTURE), "JPEG", exif=exif)
    assert decode(stored, "").shape == PICTURE.shape
    damaged = stored.replace(b"Exif\x00\x00MM\x00*", b"Exif\x00\x00MMxx").replace(b"II*\x00", b"IIxx")
    assert decode(damaged, "").shape == PICTURE.shape


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("end", [b"", b"\xff\xd9"], ids=["open end", "end marked"])
def test_a_truncated_jpeg_is_an_error_and_never_grey(progressive, end, capfd):
    whole = encoded(Image.fromarray(photographs(1, 200, 200)[0]), "JPEG", progressive=progressive)
    start = whole.index(b"\xff\xda") + 16
    for length in np.linspace(start, len(whole) - 40, 60).astype(int):
        with pytest.raises(UnreadableImageError) as caught:
            decode(whole[:length] + end, "cut.jpg")
        assert "cut.jpg" in str(caught.value)
    assert capfd.readouterr().err == ""


# Other formats


def on_white(colours, alpha):
    share = alpha[..., None] / 255
    return np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)


def test_transparent_pixels_are_shown_on_white_and_nothing_warns():
    image = Image.fromarray(PICTURE)
    alpha = Image.fromarray(PICTURE[:, :, 0])
    with_alpha = image.copy()
    with_alpha.putalpha(alpha)
    palette = image.quantize(16)
    clear = encoded(palette, "PNG", transparency=bytes(range(0, 160, 10)))
    transparency = np.arange(0, 160, 10, dtype=np.uint8)[np.array(palette)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert distance(decode(encoded(with_alpha, "PNG"), ""), on_white(PICTURE, PICTURE[:, :, 0])) <= 1
        grey = np.repeat(PICTURE[:, :, :1], 3, axis=2)
        stored = encoded(Image.merge("LA", (alpha, alpha)), "PNG")
        assert distance(decode(stored, ""), on_white(grey, PICTURE[:, :, 0])) <= 1
        assert distance(decode(clear, ""), on_white(np.array(palette.convert("RGB")), transparency)) <= 1
        opaque = image.copy()
        opaque.putalpha(255)
        assert distance(decode(encoded(opaque, "PNG"), ""), PICTURE) == 0
        assert set(np.unique(decode(encoded(image.convert("1"), "PNG"), ""))) <= {0, 255}


@pytest.mark.parametrize("kind", [".png", ".tiff"])
def test_sixteen_bits_are_scaled_to_eight_and_not_clipped(kind):
    deep = PICTURE.astype(np.uint16) * 257
    grey = cv2.imencode(kind, deep[:, :, 0])[1].tobytes()
    assert distance(decode(grey, ""), np.repeat(PICTURE[:, :, :1], 3, axis=2)) == 0
    if kind == ".png":
        colour = cv2.imencode(kind, deep[:, :, ::-1])[1].tobytes()
        assert distance(decode(colour, ""), PICTURE) <= 1


def test_sixteen_bit_pgm_and_tiffs_of_floats_and_long_integers():
    grey = PICTURE[:, :, 0]
    expected = np.repeat(grey[:, :, None], 3, axis=2)
    pgm = b"P5 84 60 65535\n" + (grey.astype(">u2") * 257).tobytes()
    assert distance(decode(pgm, ""), expected) == 0
    for values in (
        grey.astype(np.float32) / 255,
        grey.astype(np.float32),
        grey.astype(np.int32),
        grey.astype(np.int32) * 257,
    ):
        assert distance(decode(encoded(Image.fromarray(values), "TIFF"), ""), expected) <= 1
    even = Image.fromarray(np.full((4, 4), -3.5, dtype=np.float32))
    assert distance(decode(encoded(even, "TIFF"), ""), np.zeros((4, 4, 3), np.uint8)) == 0


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_its_first_frame(kind):
    frames = [Image.fromarray(np.full((20, 30, 3), 60 * i, dtype=np.uint8)) for i in (1, 2, 3)]
    stored = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(stored)).n_frames == 3
    assert distance(decode(stored, ""), np.full((20, 30, 3), 60, dtype=np.uint8)) <= 2


@pytest.mark.parametrize("kind", ["BMP", "PPM", "WEBP", "TIFF", "GIF"])
def test_the_other_formats_decode_as_pillow_does(kind):
    stored = encoded(Image.fromarray(PICTURE), kind)
    assert distance(decode(stored, ""), by_pillow(stored)) == 0


# Huge images


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_an_image_above_the_limit_names_the_setting(kind):
    stored = encoded(Image.fromarray(PICTURE), kind)
    for read in (decode, size_of, open_photo):
        with pixel_limit(5039), pytest.raises(UnreadableImageError, match=r"\(84×60\) than max_image_pixels=5039"):
            read(stored, "huge")
    with pixel_limit(60 * 84):
        assert decode(stored, "").shape == (60, 84, 3)
    assert decode(stored, "").shape == (60, 84, 3)


@pytest.mark.parametrize("side", [14_200, 40_000])  # above our limit, and where Pillow itself refuses
def test_a_small_file_that_claims_to_be_huge_is_refused_before_it_is_decoded(side):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest turned on what the package turns off
        with pytest.raises(UnreadableImageError, match="max_image_pixels"):
            decode(f"P6 {side} {side} 255\n".encode(), "bomb.ppm")


def test_size_and_pixels_of_an_array_are_its_own():
    assert size_of(PICTURE, "") == (84, 60)
    assert decode(PICTURE, "") is PICTURE
