"""Whatever bytes an image file holds, reading it gives pixels or one line that names the file."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from carp.data.decode import decode, read_file
from carp.errors import DataError
from tests.helpers import tiny_images

FORMATS = ["png", "jpeg", "gif", "tiff", "bmp", "webp", "ppm"]


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(tiny_images(1, 24)[0]).save(buffer, kind)
    return buffer.getvalue()


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
