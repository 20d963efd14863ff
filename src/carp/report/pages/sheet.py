"""Draws contact sheets: pictures in rows with text below them, as a PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from carp.errors import DataError
from carp.files.atomic import replacing
from carp.report.pages.thumbnails import SIDE, Colour, Picture

INK = (30, 30, 34)
_PAPER, _FRAME, _FAINT = (255, 255, 255), (226, 226, 230), (110, 110, 118)
_GAP, _MARGIN, _LINE, _TITLE = 10, 24, 17, 30
_FRAME_WIDTH = 2


@dataclass(frozen=True)
class Sheet:
    """Rows of pictures. Every picture is centred in a square, or in a larger box if it is larger itself."""

    title: str
    rows: Sequence[Sequence[Picture]]
    captions: Sequence[str] = ()
    """One line per row, below its pictures."""
    headings: Sequence[tuple[str, Colour]] = ()
    """One line per column, above its pictures."""
    side: int = SIDE
    """The side of the squares, in pixels."""

    def write(self, path: Path, option: str = "--sheet") -> None:
        """Write the sheet as a PNG; `option` is the option that sets the file name."""
        drawn = self.draw()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                drawn.save(temporary, "PNG")
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error.strerror or error}. Give another file with {option}."
            ) from error

    def draw(self) -> Image.Image:
        """Draw the sheet."""
        widths, lefts = self._columns()
        head = _MARGIN + _TITLE + (_LINE + 4 if self.headings else 0)
        heights = [self._height(row) for row in self.rows]
        width = lefts[-1] + widths[-1] + _MARGIN
        sheet = Image.new("RGB", (width, head + sum(heights) + _MARGIN - _GAP), _PAPER)
        draw = ImageDraw.Draw(sheet)
        _write(draw, (_MARGIN, _MARGIN - 6), self.title, INK, 16, width - 2 * _MARGIN)
        for left, (text, colour) in zip(lefts, self.headings, strict=False):
            draw.text((left, _MARGIN + _TITLE - 6), text, colour, ImageFont.load_default(14))
        top = head
        for number, (row, height) in enumerate(zip(self.rows, heights, strict=True)):
            tallest = self._tallest(row)
            for picture, left, box in zip(row, lefts, widths, strict=False):
                _draw(sheet, draw, picture, (left, top), (box, tallest))
            if self.captions:
                below = top + height - _GAP - _LINE
                _write(draw, (_MARGIN, below), self.captions[number], _FAINT, 13, width - 2 * _MARGIN)
            top += height
        return sheet

    def _columns(self) -> tuple[list[int], list[int]]:
        """Return the widths and left edges of the columns."""
        count = max(len(row) for row in self.rows)
        widths = [max([self.side, *(_size(row[i])[0] for row in self.rows if i < len(row))]) for i in range(count)]
        lefts = [_MARGIN + sum(widths[:i]) + i * _GAP for i in range(count)]
        return widths, lefts

    def _tallest(self, row: Sequence[Picture]) -> int:
        return max([self.side, *(_size(picture)[1] for picture in row)])

    def _height(self, row: Sequence[Picture]) -> int:
        """Return the height of a row with its text and the gap below it."""
        lines = max(bool(picture.head) + len(picture.lines) for picture in row) + bool(self.captions)
        return self._tallest(row) + lines * _LINE + 4 + _GAP


def _size(picture: Picture) -> tuple[int, int]:
    return (0, 0) if picture.image is None else picture.image.size


def _draw(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, picture: Picture, corner: tuple[int, int], box: tuple[int, int]
) -> None:
    (left, top), (width, height) = corner, box
    edge = _FRAME_WIDTH if picture.mark else 0
    frame = (left - edge, top - edge, left + width + edge - 1, top + height + edge - 1)
    draw.rectangle(frame, outline=picture.mark or _FRAME, width=max(edge, 1))
    if picture.image is None:
        draw.text((left + 8, top + height // 2 - 8), "cannot be read", _FAINT, ImageFont.load_default(13))
    else:
        x, y = left + (width - picture.image.width) // 2, top + (height - picture.image.height) // 2
        sheet.paste(picture.image, (x, y))
    below = top + height + 4
    if picture.head:
        _write(draw, (left, below), picture.head, picture.mark or INK, 13, width)
    for number, line in enumerate(picture.lines, start=bool(picture.head)):
        _write(draw, (left, below + number * _LINE), line, _FAINT, 12, width)


def _write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: Colour, size: int, width: int) -> None:
    """Write a line; if it is too long, its beginning is cut off, because the end of a path is the informative part."""
    font, shown = ImageFont.load_default(size), "".join(c if c.isprintable() else "?" for c in text)
    while draw.textlength(shown, font) > width and len(shown) > 4:
        shown = "..." + shown[4:]
    draw.text(place, shown, colour, font)
