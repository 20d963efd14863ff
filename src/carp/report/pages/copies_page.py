"""Reports near-copies: a table of the first groups, a page of all groups, JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole
from carp.report.pages.thumbnails import Picture, section, write_page
from carp.report.tables.screen import on_terminal, print_rows

_FIRST = 10  # groups in the table
_PICTURES = 5000  # per page; more would be too many for a browser


@dataclass(frozen=True)
class Member:
    """An image of a group."""

    row: int
    place: str
    similarity: float
    """Similarity to the nearest other image of the group; 1 if the files are identical."""
    width: int
    height: int
    num_bytes: int
    identical: bool
    """Whether another file of the group has the same bytes."""
    digest: int = 0
    """The first row whose file has the same bytes."""

    def size(self) -> str:
        """Return the dimensions and the file size as text."""
        return f"{self.width}×{self.height}, {self.num_bytes / 1000:,.1f} kB"


@dataclass(frozen=True)
class Group:
    """A group of near-copies; the first image is the one to keep (similarity/original.py)."""

    members: list[Member]
    agreement: float = 1.0
    """Agreement of the pixels, from −1 to 1, of the least similar link of the group (similarity/look_alike.py)."""

    @property
    def is_identical(self) -> bool:
        """Whether all files have the same bytes."""
        return len({member.digest for member in self.members}) == 1 and self.members[0].identical

    def head(self) -> str:
        """Describe how certain the group is."""
        return "identical files" if self.is_identical else f"pixel agreement {self.agreement:.3f}"


@dataclass(frozen=True)
class CopiesFound:
    """All near-copies that were found, the most certain groups first."""

    name: str
    images: int
    threshold: float | None
    reason: str
    groups: list[Group]
    unreadable: int

    @property
    def surplus(self) -> int:
        """The number of images to remove if one image of each group is kept."""
        return sum(len(group.members) - 1 for group in self.groups)

    def summary(self) -> str:
        """Summarise the result in one line."""
        if not self.groups:
            return f"no copies among {self.images:,} images of {self.name}"
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups):,} groups"
        return f"{self.surplus:,} copies in {groups} among {self.images:,} images of {self.name}"

    def rule(self) -> str:
        """Describe the threshold in one line."""
        return (
            f"threshold: {self.reason}" if self.threshold is None else f"threshold {self.threshold:.3f}: {self.reason}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        groups = [
            [
                {
                    "image": member.place,
                    "keep": number == 0,
                    "agreement": round(group.agreement, 6),
                    "similarity": round(member.similarity, 6),
                    "identical": member.identical,
                    "width": member.width,
                    "height": member.height,
                    "bytes": member.num_bytes,
                }
                for number, member in enumerate(group.members)
            ]
            for group in self.groups
        ]
        return {
            "schema": 1,
            "data": self.name,
            "images": self.images,
            "unreadable": self.unreadable,
            "threshold": self.threshold,
            "reason": self.reason,
            "copies": self.surplus,
            "groups": groups,
        }


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


def write_copies_page(path: Path, found: CopiesFound, picture: Callable[[Member], Image.Image | None]) -> None:
    """Write an HTML page with the images of every group side by side."""
    sections, pictures = list[str](), 0
    for number, group in enumerate(found.groups, start=1):
        if pictures + len(group.members) > _PICTURES:
            break
        pictures += len(group.members)
        sections.append(
            section(f"Group {number}: {len(group.members)} images, {group.head()}", _pictures(group, picture))
        )
    notes = [
        found.rule(),
        "The most certain groups come first: identical files, then by how much their pixels agree.",
        "Nothing was deleted. “keep” marks the most likely original. The criteria are, in this order: most pixels "
        "(without borders), camera data, oldest file, shortest name, most bytes.",
    ]
    if len(sections) < len(found.groups):
        notes.append(f"The first {len(sections):,} groups are shown; duplicates.json has all {len(found.groups):,}.")
    write_page(path, found.summary(), notes, sections)


def _pictures(group: Group, picture: Callable[[Member], Image.Image | None]) -> list[Picture]:
    return [
        Picture(
            picture(member),
            f"keep, {_similarity(member)}" if number == 0 else _similarity(member),
            (member.size(), member.place),
            first=number == 0,
            file=member.place,
        )
        for number, member in enumerate(group.members)
    ]


def _similarity(member: Member) -> str:
    return "identical" if member.identical else f"{member.similarity:.3f}"
