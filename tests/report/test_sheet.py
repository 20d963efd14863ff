"""A sheet of images of any shape."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carp.errors import DataError
from carp.report.pages.sheet import Sheet
from carp.report.pages.thumbnails import Picture, thumbnail

RED, BLUE, GREEN = (200, 0, 0), (0, 0, 200), (0, 200, 0)


def block(height: int, width: int, colour: tuple[int, int, int]) -> Picture:
    pixels = np.full((height, width, 3), colour, dtype=np.uint8)
    return Picture(thumbnail(pixels, 100), "a caption that is much too long for its place", ("a line",))


def counted(sheet: Image.Image, *colours: tuple[int, int, int]) -> list[int]:
    return [int((np.array(sheet) == colour).all(axis=2).sum()) for colour in colours]


def test_every_image_is_there_and_whole(tmp_path: Path) -> None:
    rows = [[block(50, 100, RED), block(300, 10, BLUE)], [block(1, 1, GREEN)]]
    Sheet("title", rows, side=100).write(tmp_path / "in" / "sheet.png")
    with Image.open(tmp_path / "in" / "sheet.png") as sheet:
        assert counted(sheet, RED, BLUE, GREEN) == [50 * 100, 3 * 100, 100 * 100]


def test_a_marked_picture_has_a_frame_and_hides_no_other() -> None:
    marked = Picture(block(100, 100, RED).image, mark=BLUE)
    sheet = Sheet("title", [[marked, block(100, 100, RED)]], side=100).draw()
    red, frame = counted(sheet, RED, BLUE)
    assert (red, frame) == (2 * 100 * 100, 4 * 2 * 102)


def test_captions_and_headings_take_room_of_their_own() -> None:
    rows = [[block(100, 100, RED)], [block(100, 100, RED)]]
    plain = Sheet("title", rows, side=100).draw()
    full = Sheet("title", rows, ["first row", "second row"], [("column", BLUE)], side=100).draw()
    assert full.height > plain.height
    assert counted(full, RED) == counted(plain, RED) == [2 * 100 * 100]
    assert counted(full, BLUE)[0] > 0


def test_an_image_that_cannot_be_read_keeps_its_place() -> None:
    sheet = Sheet("title", [[Picture(None, "query"), block(100, 100, RED)]], side=100).draw()
    assert counted(sheet, RED) == [100 * 100]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write.*--sheet"):
        Sheet("title", [[block(2, 2, (0, 0, 0))]]).write(tmp_path / "file" / "sheet.png")
