"""A sheet of images of any shape."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carp.errors import DataError
from carp.report.pages.contact_sheet import Cell, draw_contact_sheet


def block(height: int, width: int, colour: tuple[int, int, int]) -> Cell:
    return Cell(np.full((height, width, 3), colour, dtype=np.uint8), "a caption that is much too long for its place")


def test_every_image_is_there_and_whole(tmp_path: Path) -> None:
    red, blue, green = (200, 0, 0), (0, 0, 200), (0, 200, 0)
    rows = [[block(50, 100, red), block(300, 10, blue)], [block(1, 1, green)]]
    draw_contact_sheet("title", rows, tmp_path / "in" / "sheet.png", side=100)
    pixels = np.array(Image.open(tmp_path / "in" / "sheet.png"))
    counts = {colour: int((pixels == colour).all(axis=2).sum()) for colour in (red, blue, green)}
    assert counts == {red: 50 * 100, blue: 3 * 100, green: 100 * 100}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        draw_contact_sheet("title", [[block(2, 2, (0, 0, 0))]], tmp_path / "file" / "sheet.png")
