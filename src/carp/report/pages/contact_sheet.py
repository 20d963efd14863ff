"""A contact sheet: images of any shape in rows, each with a caption, drawn as one image."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from carp.errors import DataError
from carp.files.atomic import replacing

_GAP, _MARGIN, _LINE, _TITLE = 8, 20, 18, 34
_PAPER, _FRAME, _INK, _FAINT = (255, 255, 255), (226, 226, 230), (30, 30, 34), (110, 110, 118)


@dataclass(frozen=True)
class Cell:
    """An image [H, W, 3] and its caption."""

    pixels: NDArray[np.uint8]
    caption: str


def draw_contact_sheet(title: str, rows: list[list[Cell]], path: Path, *, side: int = 160) -> None:
    """Write a PNG with a square of `side` pixels for every image."""
    columns = max(len(row) for row in rows)
    step = side + _GAP
    width, height = 2 * _MARGIN + columns * step - _GAP, 2 * _MARGIN + _TITLE + len(rows) * (step + _LINE) - _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    write_line(draw, (_MARGIN, _MARGIN - 4), title, _INK, 16, width - 2 * _MARGIN)
    for number, row in enumerate(rows):
        top = _MARGIN + _TITLE + number * (step + _LINE)
        for column, cell in enumerate(row):
            left = _MARGIN + column * step
            draw.rectangle((left, top, left + side - 1, top + side - 1), outline=_FRAME)
            fitted = _fitted(cell.pixels, side)
            sheet.paste(fitted, (left + (side - fitted.width) // 2, top + (side - fitted.height) // 2))
            write_line(draw, (left, top + side + 2), cell.caption, _FAINT, 12, side)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            sheet.save(temporary, "PNG")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another file.") from error


def _fitted(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    """Resize an image to fit into the square without cropping."""
    height, width, _ = pixels.shape
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def write_line(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: tuple[int, int, int], size: int, width: int
) -> None:
    """Write a line; if it is too long, its beginning is cut off, because the end of a path is the informative part."""
    font, shown = ImageFont.load_default(size), "".join(c if c.isprintable() else "?" for c in text)
    while draw.textlength(shown, font) > width and len(shown) > 4:
        shown = "..." + shown[4:]
    draw.text(place, shown, colour, font)
