"""A sheet of views: each row shows an image with its crops marked, and its views as the model sees them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from carp.errors import DataError
from carp.files.atomic import replacing

_GAP, _MARGIN, _LINE = 10, 24, 22
_PAPER, _INK, _FAINT = (255, 255, 255), (30, 30, 34), (120, 120, 128)
_GLOBAL_COLOURS, _LOCAL_COLOUR = ((214, 69, 65), (38, 110, 190)), (235, 165, 30)
_READABLE = 160  # smaller views are enlarged by an integer factor to about this side


@dataclass(frozen=True)
class Row:
    """One image and its views in one epoch."""

    caption: str
    image: NDArray[np.uint8]  # [H, W, 3], upright
    boxes: NDArray[np.int64]  # [V, 4]: top, left, height, width of each view in the image
    views: list[NDArray[np.uint8]]  # V views [S, S, 3]; the first two are global


@dataclass(frozen=True)
class _Layout:
    zoom: int
    big: int  # side of a global view on the sheet
    small: int  # side of a local view
    stack: int  # local views per column
    columns: int  # columns of local views

    @property
    def row_height(self) -> int:
        return max(self.big, self.stack * (self.small + _GAP) - _GAP)

    @property
    def width(self) -> int:
        locals_ = self.columns * (self.small + _GAP) + _GAP if self.columns else 0
        return 2 * _MARGIN + 3 * self.big + 2 * _GAP + locals_


def draw_sheet(title: str, rows: list[Row], path: Path) -> None:
    """Write the sheet as a PNG."""
    layout = _layout_for(rows[0].views)
    step = layout.row_height + _GAP + _LINE
    sheet = Image.new("RGB", (layout.width, 2 * _MARGIN + 2 * _LINE + len(rows) * step - _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_MARGIN, _MARGIN - 6), title, _INK, 16, layout.width)
    _label_columns(draw, layout, len(rows[0].views))
    for number, row in enumerate(rows):
        top = _MARGIN + 2 * _LINE + number * step
        _draw_row(sheet, draw, layout, row, top)
        _write(draw, (_MARGIN, top + layout.row_height + 4), row.caption, _FAINT, 13, layout.width)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            sheet.save(temporary, "PNG")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another file with --out.") from error


def _layout_for(views: list[NDArray[np.uint8]]) -> _Layout:
    size, num_local = len(views[0]), len(views) - 2
    zoom = max(1, round(_READABLE / size))
    big = size * zoom
    small = len(views[-1]) * zoom if num_local else 0
    stack = max(1, (big + _GAP) // (small + _GAP)) if num_local else 0
    return _Layout(zoom, big, small, stack, -(-num_local // stack) if num_local else 0)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _write(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: tuple[int, int, int], size: int, width: int
) -> None:
    """Write a line; if it is too long, its beginning is cut off, because the end of a path is the informative part."""
    font, shown = _font(size), text
    while draw.textlength(shown, font) > width - 2 * _MARGIN and len(shown) > 4:
        shown = "..." + shown[4:]
    draw.text(place, shown, colour, font)


def _left_of(layout: _Layout, column: int) -> int:
    return _MARGIN + column * (layout.big + _GAP)


def _label_columns(draw: ImageDraw.ImageDraw, layout: _Layout, num_views: int) -> None:
    labels = [("image and crops", _INK), ("global view 1", _GLOBAL_COLOURS[0]), ("global view 2", _GLOBAL_COLOURS[1])]
    if num_views > 2:
        labels.append((f"{num_views - 2} local views", _LOCAL_COLOUR))
    for column, (text, colour) in enumerate(labels):
        left = _left_of(layout, column) + (_GAP if column == 3 else 0)
        draw.text((left, _MARGIN + _LINE), text, colour, _font(14))


def _colour(view: int) -> tuple[int, int, int]:
    return _GLOBAL_COLOURS[view] if view < 2 else _LOCAL_COLOUR


def _draw_row(sheet: Image.Image, draw: ImageDraw.ImageDraw, layout: _Layout, row: Row, top: int) -> None:
    sheet.paste(_with_crops(row, layout.big), (_MARGIN, top))
    for view, pixels in enumerate(row.views):
        side = len(pixels) * layout.zoom
        if view < 2:
            place = (_left_of(layout, 1 + view), top)
        else:
            column, line = divmod(view - 2, layout.stack)
            left = _left_of(layout, 3) + _GAP + column * (layout.small + _GAP)
            place = (left, top + line * (layout.small + _GAP))
        sheet.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST), place)
        frame = (place[0] - 2, place[1] - 2, place[0] + side + 1, place[1] + side + 1)
        draw.rectangle(frame, outline=_colour(view), width=2)


def _with_crops(row: Row, side: int) -> Image.Image:
    """Fit the image into a square and draw the outline of every crop; global crops are drawn last, on top."""
    height, width, _ = row.image.shape
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    enlarged = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
    image = Image.fromarray(row.image).resize(size, enlarged)
    draw = ImageDraw.Draw(image)
    for view in reversed(range(len(row.boxes))):
        top, left, box_height, box_width = (int(x) for x in row.boxes[view])
        x0, y0 = (min(round(x * scale), limit - 1) for x, limit in zip((left, top), size, strict=True))
        ends = (left + box_width, top + box_height)
        x1, y1 = (min(round(x * scale) - 1, limit - 1) for x, limit in zip(ends, size, strict=True))
        outline = (x0, y0, max(x0, x1), max(y0, y1))  # a crop of a thin image may be less than a pixel here
        draw.rectangle(outline, outline=_colour(view), width=2 if view < 2 else 1)
    return image
