"""What a folder holds beside images: counted by kind, so that nobody loses photographs without a word."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from carp.images.decoding.image_formats import remedy

OTHER_KIND = "links that lead nowhere, pipes or devices"
_KINDS_NAMED = 6
_FOLDERS_NAMED = 3
_LONGEST_SUFFIX = 12  # of a name such as "v1.2 final version" the rest is no kind of file


def kinds_of(
    blob: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> dict[str, int]:
    """How many of the chosen names, which lie in one run of bytes, have which suffix; most frequent first."""
    counts, everything = Counter[str](), blob.data
    for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True):
        name = bytes(everything[start:end]).decode("utf-8", "surrogateescape")
        suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - a Path per file is slow
        counts[suffix if len(suffix) <= _LONGEST_SUFFIX else ""] += 1
    return dict(counts.most_common())


def skipped_notes(kinds: Mapping[str, int]) -> list[str]:
    """One line about files that are no images, with the remedy for those that could be; none if there are none."""
    if not kinds:
        return []
    total, first = sum(kinds.values()), list(kinds.items())[:_KINDS_NAMED]
    named = [_counted(kind, count) for kind, count in first]
    rest = total - sum(count for _, count in first)
    named += [f"{rest:,} others"] if rest else []
    remedies = list(dict.fromkeys(words for kind in kinds if (words := remedy(kind))))
    cure = f" ({'; '.join(remedies)})" if remedies else ""
    return [f"skipped {total:,} file{'s' if total != 1 else ''}: {', '.join(named)}{cure}"]


def _counted(kind: str, count: int) -> str:
    return f"{count:,} {kind or 'without a suffix'}"


def unlistable_notes(root: str, folders: Sequence[str]) -> list[str]:
    """One line about sub-folders that may not be listed; none if there are none."""
    if not folders:
        return []
    named = ", ".join(f"{root}/{folder}" for folder in folders[:_FOLDERS_NAMED])
    more = f" and {len(folders) - _FOLDERS_NAMED:,} more" if len(folders) > _FOLDERS_NAMED else ""
    what = "1 sub-folder" if len(folders) == 1 else f"{len(folders):,} sub-folders"
    return [f"skipped {what} without permission to list: {named}{more}"]
