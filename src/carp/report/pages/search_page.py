"""Reports search results: a table, a contact sheet as PNG or HTML, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.errors import ConfigError, DataError
from carp.files.atomic import replacing
from carp.report.pages.contact_sheet import write_line
from carp.report.pages.thumbnails import SIDE, Picture, section, write_page
from carp.report.tables.screen import on_terminal, print_rows

SHEETS = (".png", ".html")
_GAP, _MARGIN, _LINE = 12, 24, 17
_PAPER, _INK, _FAINT, _MARK = (255, 255, 255), (30, 30, 34), (120, 120, 128), (26, 127, 75)


@dataclass(frozen=True)
class Match:
    """An image that was found."""

    similarity: float
    place: str
    row: int  # of the store


@dataclass(frozen=True)
class Found:
    """A query and the images that are most similar to it, best first."""

    query: str
    matches: list[Match]


def print_found(found: Sequence[Found]) -> None:
    """Print one row per image found: a table on a terminal, otherwise tab-separated lines."""
    if not on_terminal():
        rows = (
            (one.query, str(n), f"{m.similarity:.6f}", m.place) for one in found for n, m in enumerate(one.matches, 1)
        )
        print_rows(("query", "rank", "similarity", "image"), rows)
        return
    table = Table()
    table.add_column("query", overflow="fold")  # names are not truncated
    table.add_column("", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column("image", overflow="fold")
    for one in found:
        for rank, match in enumerate(one.matches, start=1):
            query = Text(printable(one.query) if rank == 1 else "")  # as Text, because brackets in names are not markup
            table.add_row(
                query,
                str(rank),
                f"{match.similarity:.3f}",
                Text(printable(match.place)),
                end_section=rank == len(one.matches),
            )
    SafeConsole(soft_wrap=True).print(table)


def found_as_dict(found: Sequence[Found]) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    return {
        "queries": [
            {
                "image": one.query,
                "results": [
                    {"rank": rank, "similarity": round(match.similarity, 6), "image": match.place, "row": match.row}
                    for rank, match in enumerate(one.matches, start=1)
                ],
            }
            for one in found
        ]
    }


def check_sheet(path: Path) -> None:
    """Reject unsupported formats before anything is computed."""
    if path.suffix.lower() not in SHEETS:
        raise ConfigError(f"--sheet must be a {' or '.join(SHEETS)} file, received {path}.")


def write_sheet(path: Path, title: str, rows: Sequence[list[Picture]]) -> None:
    """Write a contact sheet with one row per query; the first image of a row is the query."""
    check_sheet(path)
    if path.suffix.lower() == ".html":
        write_page(path, title, [], [section(row[0].lines[0] if row[0].lines else "", row) for row in rows])
        return
    columns = max(len(row) for row in rows)
    step = SIDE + 3 * _LINE + _GAP
    sheet = Image.new(
        "RGB", (2 * _MARGIN + columns * (SIDE + _GAP) - _GAP, 2 * _MARGIN + 2 * _LINE + len(rows) * step), _PAPER
    )
    draw = ImageDraw.Draw(sheet)
    write_line(draw, (_MARGIN, _MARGIN - 8), title, _INK, 16, sheet.width - 2 * _MARGIN)
    for number, row in enumerate(rows):
        for column, picture in enumerate(row):
            _draw(sheet, draw, picture, (_MARGIN + column * (SIDE + _GAP), _MARGIN + 2 * _LINE + number * step))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            sheet.save(temporary, "PNG")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another file with --sheet.") from error


def _draw(sheet: Image.Image, draw: ImageDraw.ImageDraw, picture: Picture, corner: tuple[int, int]) -> None:
    left, top = corner
    if picture.image is None:
        draw.text((left, top + SIDE // 2), "cannot be read", _FAINT, ImageFont.load_default(13))
    else:
        width, height = picture.image.size
        sheet.paste(picture.image, (left + (SIDE - width) // 2, top + (SIDE - height) // 2))
    if picture.first:
        draw.rectangle((left - 3, top - 3, left + SIDE + 2, top + SIDE + 2), outline=_MARK, width=2)
    write_line(draw, (left, top + SIDE + 4), picture.head, _MARK if picture.first else _INK, 13, SIDE)
    for number, line in enumerate(picture.lines[:2], start=1):
        write_line(draw, (left, top + SIDE + 4 + number * _LINE), line, _FAINT, 12, SIDE)
