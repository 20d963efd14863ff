"""The sheet of views: whatever the sizes, it can be drawn."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carp.report.pages.views_sheet import Row, write_views_sheet
from tests.helpers import tiny_images


@pytest.mark.parametrize(("size", "local", "count"), [(224, 96, 6), (96, 96, 1), (500, 32, 10), (8, 8, 3), (32, 16, 0)])
@pytest.mark.parametrize(("height", "width"), [(1, 900), (900, 1), (300, 200)])
def test_any_sizes(size: int, local: int, count: int, height: int, width: int, tmp_path: Path) -> None:
    views = [np.zeros((size, size, 3), np.uint8)] * 2 + [np.zeros((local, local, 3), np.uint8)] * count
    boxes = np.array([[0, 0, height, width]] * len(views))
    row = Row("a very long caption " * 20, np.zeros((height, width, 3), np.uint8), boxes, views)
    write_views_sheet("title", [row, row], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width >= 3 * size
        assert sheet.height >= 2 * size


def test_every_view_stands_on_the_sheet(tmp_path: Path) -> None:
    views = [*tiny_images(2, 200), *tiny_images(5, 64, seed=1)]
    row = Row("caption", tiny_images(1, 50)[0], np.array([[0, 0, 50, 50]] * 7), views)
    write_views_sheet("title", [row], tmp_path / "sheet.png")
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    for view in views:
        side = len(view)
        places = np.argwhere((sheet[:-side, :-side] == view[0, 0]).all(axis=2))
        assert any(np.array_equal(sheet[y : y + side, x : x + side], view) for y, x in places)
