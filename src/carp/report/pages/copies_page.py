"""Near-copies for a person to look at: a table of the first groups, a page of all of them, JSON."""

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
_PICTURES = 5000  # on a page: more would be too much for a browser


@dataclass(frozen=True)
class Member:
    """An image of a group."""

    row: int
    place: str
    similarity: float
    """To the nearest other image of the group; 1 if it is the same to the byte."""
    width: int
    height: int
    num_bytes: int
    identical: bool
    """Whether another image of the group is the same to the byte."""
    digest: int = 0
    """The first row that is the same to the byte."""

    def size(self) -> str:
        """In words."""
        return f"{self.width}×{self.height}, {self.num_bytes / 1000:,.1f} kB"


@dataclass(frozen=True)
class Group:
    """Near-copies; the first is the one to keep (similarity/original.py)."""

    members: list[Member]
    agreement: float = 1.0
    """Of the pixels, from −1 to 1: the weakest link of the group (similarity/look_alike.py)."""

    @property
    def is_identical(self) -> bool:
        """Whether all images are the same to the byte."""
        return len({member.digest for member in self.members}) == 1 and self.members[0].identical

    def head(self) -> str:
        """How certain the group is, in words."""
        return "identical files" if self.is_identical else f"pixel agreement {self.agreement:.3f}"


@dataclass(frozen=True)
class CopiesFound:
    """All near-copies among images, the most certain groups first."""

    name: str
    images: int
    threshold: float | None
    reason: str
    groups: list[Group]
    unreadable: int

    @property
    def surplus(self) -> int:
        """Images that would go if one of each group stayed."""
        return sum(len(group.members) - 1 for group in self.groups)

    def summary(self) -> str:
        """What was found, in a line."""
        if not self.groups:
            return f"no copies among {self.images:,} images of {self.name}"
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups):,} groups"
        return f"{self.surplus:,} copies in {groups} among {self.images:,} images of {self.name}"

    def rule(self) -> str:
        """What the threshold is, in a line."""
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
    """The summary and the first groups."""
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
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")  # names stay whole
    for number, group in enumerate(found.groups[:_FIRST], start=1):
        for place, member in enumerate(group.members):
            head = str(number) if place == 0 else ""
            last = place == len(group.members) - 1
            table.add_row(head, _similarity(member), member.size(), Text(printable(member.place)), end_section=last)
    console.print(table)
    if len(found.groups) > _FIRST:
        console.print(f"… and {len(found.groups) - _FIRST:,} groups more")


def write_copies_page(path: Path, found: CopiesFound, picture: Callable[[Member], Image.Image | None]) -> None:
    """A page with the groups side by side."""
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
        "Nothing was deleted. “keep” marks the most likely original: most pixels (a border does not count), camera "
        "data, oldest file, shortest name, most bytes, in this order.",
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
