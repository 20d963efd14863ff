"""Reports near-duplicates: a table of the first groups, a page of all groups, JSON."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.features.stored_images import StoredImages
from carp.report.pages.template import ShownPicture, shown_pictures, write_page
from carp.report.pages.thumbnails import GREEN, Picture, thumbnail_of
from carp.report.tables.screen import on_terminal, print_rows
from carp.similarity.copies_found import CopiesFound, Group, Member

_FIRST = 10  # groups in the table
_PICTURES = 5000  # per page; more would be too many for a browser


def print_copies(found: CopiesFound) -> None:
    """Print the summary and the first groups; in a pipe, all groups."""
    console = SafeConsole(soft_wrap=True, highlight=False)
    console.print(printable(found.summary()), markup=False)
    console.print(printable(found.rule()), markup=False)
    if not found.groups:
        return
    if not on_terminal():
        print_rows(
            ("group", "keep", "agreement", "similarity", "size", "image"),
            (
                (
                    str(number),
                    "keep" if place == 0 else "",
                    f"{group.agreement:.3f}",
                    _similarity(member),
                    member.size(),
                    member.place,
                )
                for number, group in enumerate(found.groups, start=1)
                for place, member in enumerate(group.members)
            ),
        )
        return
    table = Table()
    for name, justify in (("group", "right"), ("similarity", "right"), ("size", "left"), ("image", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for number, group in enumerate(found.groups[:_FIRST], start=1):
        for place, member in enumerate(group.members):
            head = str(number) if place == 0 else ""
            last = place == len(group.members) - 1
            table.add_row(head, _similarity(member), member.size(), Text(printable(member.place)), end_section=last)
    console.print(table)
    if len(found.groups) > _FIRST:
        console.print(f"… and {len(found.groups) - _FIRST:,} more groups")


def write_copies_page(path: Path, found: CopiesFound, images: StoredImages) -> None:
    """Write an HTML page with the images of every group side by side."""
    sections, pictures = list[tuple[str, list[ShownPicture]]](), 0
    for number, group in enumerate(found.groups, start=1):
        if pictures + len(group.members) > _PICTURES:
            break
        pictures += len(group.members)
        title = f"Group {number}: {len(group.members)} images, {group.head()}"
        sections.append((title, shown_pictures(_pictures(group, images))))
    notes = [
        found.rule(),
        "The most certain groups come first: identical files, then by how much their pixels agree.",
        "Nothing was deleted. “keep” marks the most likely original. The criteria are, in this order: most pixels "
        "(without borders), camera data, oldest file, shortest name, most bytes.",
    ]
    if len(sections) < len(found.groups):
        notes.append(f"The first {len(sections):,} groups are shown; duplicates.json has all {len(found.groups):,}.")
    write_page(path, "sheet.html", title=found.summary(), notes=notes, groups=sections)


def _pictures(group: Group, images: StoredImages) -> list[Picture]:
    return [
        Picture(
            thumbnail_of(images, member.row, member.place),
            f"keep, {_similarity(member)}" if number == 0 else _similarity(member),
            (member.size(), member.place),
            mark=GREEN if number == 0 else None,
            file=member.place,
        )
        for number, member in enumerate(group.members)
    ]


def _similarity(member: Member) -> str:
    return "identical" if member.identical else f"{member.similarity:.3f}"
