"""Whatever bytes an image file holds, reading it gives pixels or one line that names the file, and prints nothing."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from carp.config import Config
from carp.errors import DataError, UnreadableImageError
from carp.images.decoding.decode import decode, read_file
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import view_kinds
from tests.helpers import tiny_images

FORMATS = ["png", "jpeg", "progressive", "cmyk", "gif", "animated", "tiff", "lzw", "bmp", "webp", "ppm"]
SAVED_AS = {"progressive": "jpeg", "cmyk": "jpeg", "animated": "gif", "lzw": "tiff"}
DAMAGED = 300  # of every format
KINDS = view_kinds(Config(global_size=72, local_size=16, local_views=1))


def encoded(kind: str) -> bytes:
    """A small image with an EXIF block, as large as damage needs."""
    image = Image.fromarray(tiny_images(1, 24)[0])
    exif = Image.Exif()
    exif[0x0112] = 6
    options: dict[str, object] = {} if kind in {"gif", "animated", "bmp", "ppm"} else {"exif": exif}
    options |= {
        "progressive": {"progressive": True},
        "animated": {"save_all": True, "append_images": [image.rotate(90)]},
        "lzw": {"compression": "tiff_lzw"},
    }.get(kind, {})
    buffer = io.BytesIO()
    (image.convert("CMYK") if kind == "cmyk" else image).save(buffer, SAVED_AS.get(kind, kind), **options)
    return buffer.getvalue()


def damaged(kind: str, count: int) -> Iterator[bytes]:
    """Files cut short, with bytes changed, zeroed, left out or doubled; half of it near the head."""
    whole, rng = encoded(kind), np.random.default_rng(sum(kind.encode()))
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(rng.integers(1, 5)):
            place = int(rng.integers(0, len(content) if rng.random() < 0.5 else min(200, len(content))))
            length = int(rng.integers(1, 30))
            damage = rng.integers(5)
            if damage == 0:
                del content[max(2, place) :]
            elif damage == 1:
                content[place : place + 1] = rng.bytes(1)
            elif damage == 2:
                content[place : place + length] = bytes(length)
            elif damage == 3:
                del content[place : place + length]
            else:
                content[place:place] = content[place : place + length]
            if not content:
                break
        yield bytes(content)


@pytest.mark.parametrize("kind", FORMATS)
def test_thousands_of_damaged_files_give_views_or_one_error(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = {"views": 0, "error": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest turned on what the package turns off
        for index, content in enumerate(damaged(kind, DAMAGED)):
            try:
                views = photo_views(content, f"file-{index}", KINDS, seed=0, epoch=0, index=index)
            except UnreadableImageError as error:
                outcomes["error"] += 1
                assert f"file-{index}" in str(error)
                assert "\n" not in str(error)
                assert error.reason
            else:
                outcomes["views"] += 1
                assert [tuple(view.shape) for view in views] == [(3, 72, 72), (3, 72, 72), (3, 16, 16)]
    assert min(outcomes.values()) > 0, outcomes  # the damage is neither nothing nor all
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_cut_anywhere_in_its_first_half_is_an_error(kind: str) -> None:
    whole = encoded(kind)
    if kind == "animated":
        whole = encoded("gif")  # of which the first frame fills the file
    for length in range(0, len(whole) // 2, 7):
        with pytest.raises(UnreadableImageError):
            decode(whole[:length], "cut")


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_damaged_bytes_give_pixels_or_an_error_that_names_the_file(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(encoded(kind))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, min(200, len(content) - 1)))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = Path(tmp_path_factory.getbasetemp()) / f"damaged.{kind}"
    path.write_bytes(content)
    try:
        pixels = decode(read_file(path), str(path))
    except DataError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
    else:
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[-1] == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_undamaged_bytes_give_pixels(kind: str) -> None:
    assert decode(encoded(kind), "good").shape == (24, 24, 3)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4", "lzma"])
def test_damaged_tiffs_print_nothing(compression: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In particular not through Python's logging, whose last resort is the screen."""
    image = Image.fromarray(tiny_images(1, 40)[0])
    buffer, rng, bad = io.BytesIO(), np.random.default_rng(1), 0
    (image.convert("1") if compression == "group4" else image).save(buffer, "TIFF", compression=compression)
    for _ in range(200):
        content = bytearray(buffer.getvalue())
        for place in (*rng.integers(0, len(content), 5), *rng.integers(max(0, len(content) - 250), len(content), 3)):
            content[place] = rng.integers(256)
        try:
            decode(bytes(content), "damaged")
        except UnreadableImageError:
            bad += 1
    assert bad > 0
    assert capfd.readouterr() == ("", "")
