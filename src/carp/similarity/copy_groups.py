"""Groups of near-duplicates in the order of their certainty, each with the image to keep first."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.errors import UnreadableImageError
from carp.images.decoding.decode import Stored, decode, has_camera_data, size_of
from carp.similarity.copies_found import Group, Member
from carp.similarity.look_alike import Look, agreement, look_at
from carp.similarity.near_copies import Copies
from carp.similarity.original import Evidence, original


def group_copies(
    copies: Copies, place: Callable[[int], str], fetch: Callable[[int], Stored], firsts: NDArray[np.int64]
) -> list[Group]:
    """Inspect the images of every group and order the groups.

    Groups of identical files come first, then the others by the agreement of their pixels.

    Args:
        copies: Rows that belong together.
        place: Returns the place of a row's image.
        fetch: Returns this image as it is stored.
        firsts: For every row, the first row whose image is byte-identical.
    """
    identical = _identical(firsts)
    groups = []
    for rows in copies.groups:
        seen = [_see(row, place(row), fetch) for row in rows]
        members = [
            Member(
                row,
                place(row),
                min(copies.similarity[row], 1.0),
                *one.size,
                one.evidence.num_bytes,
                identical=row in identical,
                digest=int(firsts[row]),
            )
            for row, one in zip(rows, seen, strict=True)
        ]
        keep = original([one.evidence for one in seen])
        others = [member for number, member in enumerate(members) if number != keep]
        others.sort(key=lambda m: (-m.width * m.height, -m.num_bytes, m.row))
        looks = [one.look for one in seen if one.look is not None]
        groups.append(Group([members[keep], *others], agreement(looks) if len(looks) == len(seen) else -1.0))
    return sorted(groups, key=lambda g: (not g.is_identical, -g.agreement, g.members[0].row))


def _identical(firsts: NDArray[np.int64]) -> set[int]:
    """Return rows whose image is the same to the byte as that of another row."""
    again = np.flatnonzero(firsts != np.arange(len(firsts)))
    return {*again.tolist(), *firsts[again].tolist()}


@dataclass(frozen=True)
class _Seen:
    """What is known about an image; only its name if it can no longer be read."""

    size: tuple[int, int]
    look: Look | None
    evidence: Evidence


def _see(row: int, place: str, fetch: Callable[[int], Stored]) -> _Seen:
    path = Path(place)
    modified = path.stat().st_mtime if path.is_file() else None
    try:
        stored = fetch(row)
        look, size = look_at(decode(stored, place)), size_of(stored, place)
    except UnreadableImageError:  # it was readable when its features were extracted
        return _Seen((0, 0), None, Evidence(0, False, modified, path.name, 0))
    num_bytes = len(stored) if isinstance(stored, bytes) else stored.nbytes
    pixels = look.inner[0] * look.inner[1]
    return _Seen(size, look, Evidence(pixels, has_camera_data(stored), modified, path.name, num_bytes))
