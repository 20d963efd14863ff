"""The results of a search: a table, or a contact sheet as a PNG or an HTML page."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.errors import ConfigError, UnreadableImageError
from carp.features.stored_images import StoredImages
from carp.images.decoding.decode import decode, read_file
from carp.report.pages.sheet import Sheet
from carp.report.pages.template import shown_pictures, write_page
from carp.report.pages.thumbnails import GREEN, Picture, thumbnail, thumbnail_of
from carp.report.tables.screen import on_terminal, print_rows
from carp.similarity.matches import Found

SHEETS = (".png", ".html")
_MAX_ROWS = 50  # queries on a sheet


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


def check_sheet(path: Path) -> None:
    """Reject unsupported formats before anything is computed."""
    if path.suffix.lower() not in SHEETS:
        raise ConfigError(f"--sheet must be a {' or '.join(SHEETS)} file, received {path}.")


def write_search_sheet(path: Path, found: Sequence[Found], images: StoredImages) -> None:
    """Write a contact sheet, a PNG or a page: one row per query, which is the first picture of its row.

    Args:
        path: A .png or .html file.
        found: The results of a search; the first 50 are shown.
        images: The images of the index.
    """
    check_sheet(path)
    rows = [_row(one, images) for one in found[:_MAX_ROWS]]
    queries = f"{len(found)} queries" if len(found) > 1 else "1 query"
    part = f", the first {_MAX_ROWS}" if len(found) > _MAX_ROWS else ""
    title = f"{queries}{part}: the most similar images"
    if path.suffix.lower() == ".html":
        write_page(path, "sheet.html", title=title, groups=[(row[0].lines[0], shown_pictures(row)) for row in rows])
    else:
        Sheet(title, rows).write(path)


def _row(one: Found, images: StoredImages) -> list[Picture]:
    query = Picture(_query(one.query), "query", (one.query,), mark=GREEN, file=one.query)
    matches = [
        Picture(
            thumbnail_of(images, match.row, match.place),
            f"{rank}: {match.similarity:.3f}",
            (match.place,),
            file=match.place,
        )
        for rank, match in enumerate(one.matches, start=1)
    ]
    return [query, *matches]


def _query(name: str) -> Image.Image | None:
    try:
        return thumbnail(decode(read_file(Path(name)), name))
    except UnreadableImageError:  # a member of an archive
        return None
