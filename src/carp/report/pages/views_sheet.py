"""A sheet of views: each row shows an image with its crops marked, and its views as the model sees them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from carp.report.pages.sheet import INK, Sheet
from carp.report.pages.thumbnails import Colour, Picture, thumbnail

_GLOBAL_COLOURS, _LOCAL_COLOUR = ((214, 69, 65), (38, 110, 190)), (235, 165, 30)
_READABLE = 160  # smaller views are enlarged by an integer factor to about this side
_FRAME, _GAP = 2, 10


@dataclass(frozen=True)
class Row:
    """One image and its views in one epoch."""

    caption: str
    image: NDArray[np.uint8]  # [H, W, 3], upright
    boxes: NDArray[np.int64]  # [V, 4]: top, left, height, width of each view in the image
    views: list[NDArray[np.uint8]]  # V views [S, S, 3]; the first two are global


def write_views_sheet(title: str, rows: list[Row], path: Path) -> None:
    """Write the sheet as a PNG."""
    size, num_local = len(rows[0].views[0]), len(rows[0].views) - 2
    zoom = max(1, round(_READABLE / size))
    headings = [("image and crops", INK)]
    headings += [(f"global view {number}", colour) for number, colour in enumerate(_GLOBAL_COLOURS, 1)]
    headings += [(f"{num_local} local views", _LOCAL_COLOUR)] if num_local else []
    pictures = [_pictures(row, zoom, size * zoom) for row in rows]
    Sheet(title, pictures, [row.caption for row in rows], headings, side=size * zoom).write(path, "--out")


def _pictures(row: Row, zoom: int, side: int) -> list[Picture]:
    views = [_enlarged(view, zoom) for view in row.views]
    framed = [Picture(view, mark=_colour(number)) for number, view in enumerate(views[:2])]
    return [Picture(_with_crops(row, side)), *framed, *([Picture(_mosaic(views[2:], side))] if views[2:] else [])]


def _enlarged(view: NDArray[np.uint8], zoom: int) -> Image.Image:
    side = len(view) * zoom
    return Image.fromarray(view).resize((side, side), Image.Resampling.NEAREST)


def _mosaic(views: list[Image.Image], side: int) -> Image.Image:
    """Return the local views as one picture, stacked up to the height of a global view."""
    step = views[0].width + _GAP
    stack = max(1, (side + _GAP) // step)
    columns, lines = -(-len(views) // stack), min(stack, len(views))
    width, height = (count * step - _GAP + 2 * _FRAME for count in (columns, lines))
    mosaic = Image.new("RGB", (max(side, width), max(side, height)), (255, 255, 255))  # it fills its box
    draw = ImageDraw.Draw(mosaic)
    for number, view in enumerate(views):
        column, line = divmod(number, stack)
        x, y = _FRAME + column * step, _FRAME + line * step
        mosaic.paste(view, (x, y))
        frame = (x - _FRAME, y - _FRAME, x + view.width + 1, y + view.height + 1)
        draw.rectangle(frame, outline=_LOCAL_COLOUR, width=_FRAME)
    return mosaic


def _colour(view: int) -> Colour:
    return _GLOBAL_COLOURS[view] if view < 2 else _LOCAL_COLOUR


def _with_crops(row: Row, side: int) -> Image.Image:
    """Fit the image into a square and draw the outline of every crop; global crops are drawn last, on top."""
    image = thumbnail(row.image, side)
    scale = side / max(row.image.shape[:2])
    draw = ImageDraw.Draw(image)
    for view in reversed(range(len(row.boxes))):
        top, left, box_height, box_width = (int(x) for x in row.boxes[view])
        x0, y0 = (min(round(x * scale), limit - 1) for x, limit in zip((left, top), image.size, strict=True))
        ends = (left + box_width, top + box_height)
        x1, y1 = (min(round(x * scale) - 1, limit - 1) for x, limit in zip(ends, image.size, strict=True))
        outline = (x0, y0, max(x0, x1), max(y0, y1))  # a crop of a thin image may be less than a pixel here
        draw.rectangle(outline, outline=_colour(view), width=2 if view < 2 else 1)
    return image
