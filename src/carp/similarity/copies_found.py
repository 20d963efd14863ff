"""The result of a search for near-duplicates: groups of images, the most certain first."""

from dataclasses import dataclass
from typing import Any


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
    """A group of near-duplicates; the first image is the one to keep (similarity/original.py)."""

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
    """All near-duplicates that were found, the most certain groups first."""

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
        """Return everything as plain values, for JSON."""
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
