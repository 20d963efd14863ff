"""The map of images on a page: points that a script draws, colours to choose from, and thumbnails in one picture.

Shapes: M images.
"""

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carp.console.progress import Counter
from carp.exploration.layout import Layout, spread_rows
from carp.report.pages.template import asset, data_address, text_for_scripts

MOST_POINTS, MOST_THUMBNAILS = 20_000, 3_000
THUMBNAIL, _COLUMNS = 48, 60  # a multiple of 16, so that no JPEG block belongs to two thumbnails
_QUALITY = 72
_GROUND = (128, 128, 128)
_LIMIT = 32767


@dataclass(frozen=True)
class Classes:
    """A colour per class or cluster."""

    name: str
    values: NDArray[np.int64]
    """The class of every image, [M]; -1 is none."""
    names: Sequence[str]

    def as_data(self) -> dict[str, Any]:
        """For the script."""
        names = [text_for_scripts(name) for name in self.names]
        return {"name": self.name, "names": names, "values": _packed(self.values, "<i4")}


@dataclass(frozen=True)
class Scale:
    """A colour per number."""

    name: str
    values: NDArray[np.float32]

    def as_data(self) -> dict[str, Any]:
        """For the script."""
        return {"name": self.name, "values": _packed(self.values, "<f4")}


def map_data(
    layout: Layout,
    names: Sequence[str],
    colours: Sequence[Classes | Scale],
    draw: Callable[[int], Image.Image | None],
    *,
    progress: Counter = lambda _done, _all: None,
) -> dict[str, Any]:
    """What the script needs of a map.

    Args:
        layout: The places of the images.
        names: Their names.
        colours: What points can be coloured by; the first is shown at the start.
        draw: Draws an image of at most 48 pixels; None if it cannot be read.
        progress: Called with (thumbnails drawn, all).
    """
    shared = shared_folder(names)
    x, y = np.round(layout.points * _LIMIT).astype("<i2").T
    return {
        "x": _packed(x, "<i2"),
        "y": _packed(y, "<i2"),
        "method": layout.method,
        "folder": text_for_scripts(shared),
        "names": [text_for_scripts(name.removeprefix(shared)) for name in names],
        "colours": [colour.as_data() for colour in colours],
        "thumbnails": _sprite(len(names), draw, progress),
    }


def map_scripts() -> list[str]:
    """The scripts that draw maps; they need Plotly before them."""
    return [asset("map.js")]


def point_rows(count: int, seed: int = 0) -> NDArray[np.int64]:
    """The images of a map: all, or a random sample of so many that a browser can carry them; in ascending order."""
    return spread_rows(count, MOST_POINTS, seed)


def _sprite(count: int, draw: Callable[[int], Image.Image | None], progress: Counter) -> dict[str, Any]:
    """All thumbnails as one picture, and the place of every image in it, -1 for those without one."""
    rows = spread_rows(count, MOST_THUMBNAILS, 1)
    places = np.full(count, -1, dtype=np.int64)
    sheet = Image.new("RGB", (THUMBNAIL * min(_COLUMNS, len(rows)), THUMBNAIL * -(-len(rows) // _COLUMNS)), _GROUND)
    drawn = 0
    for done, row in enumerate(rows.tolist(), start=1):
        if (image := draw(row)) is not None:
            line, column = divmod(drawn, _COLUMNS)
            left, top = ((THUMBNAIL - side) // 2 for side in image.size)
            sheet.paste(image, (column * THUMBNAIL + left, line * THUMBNAIL + top))
            places[row] = drawn
            drawn += 1
        progress(done, len(rows))
    return {
        "side": THUMBNAIL,
        "columns": _COLUMNS,
        "size": sheet.size,
        "places": _packed(places, "<i2"),
        "src": data_address(sheet, _QUALITY),
    }


def shared_folder(names: Sequence[str]) -> str:
    """The beginning that all names share, up to a slash."""
    shared = os.path.commonprefix(names) if len(names) > 1 else ""  # noqa: RUF071 - names need not be paths
    return shared[: shared.rfind("/") + 1]


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
