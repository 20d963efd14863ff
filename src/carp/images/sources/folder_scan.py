"""The images below a folder, and counts of all other files, so that no photograph is skipped silently."""

import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.decoding.image_formats import remedy
from carp.images.decoding.transient import is_transient, retrying
from carp.images.index import pack
from carp.images.source import Found

OTHER_KIND = "broken links, pipes or devices"  # stored in indices
UNKNOWN = -1
_LOWER = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8).astype(np.uint64)
_FRESH = 2_000_000_000  # nanoseconds: a folder that changed so recently may change again without a new mtime
_REPORT_EVERY = 10_000
_KINDS_NAMED = 6
_FOLDERS_NAMED = 3
_LONGEST_SUFFIX = 12  # longer ones are not suffixes but the end of a name such as "v1.2 final version"


class Listed(NamedTuple):
    """The contents of one folder."""

    changed: int  # its mtime in nanoseconds, or UNKNOWN if that is too recent to be relied on
    files: int
    names: bytes  # of the files, as `pack` writes them
    others: int  # broken links, pipes, sockets, devices


def scan_folders(root: Path, progress: Found) -> tuple[dict[str, Listed], list[str]]:
    """Return every folder by its path relative to the root, and the paths of those without permission to list.

    Links come after everything else and in the order of their names, so that the result does not depend on the order
    in which the file system lists a folder.
    """
    found, unlistable = dict[str, Listed](), list[str]()
    folders, links, seen = [""], list[str](), set[tuple[int, int]]()
    started, total, reported = time.time_ns(), 0, 0
    while folders or links:
        folder = folders.pop() if folders else heapq.heappop(links)
        path = f"{root}/{folder}"
        try:
            state = retrying(partial(os.stat, path), path)  # before it is listed, so that a later change is noticed
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            files, inner, linked, others = retrying(partial(_list, path), path)
        except PermissionError as error:
            if not folder:
                raise DataError(f"cannot list the folder {root}: {error.strerror}. Change its permissions.") from error
            unlistable.append(folder)
            continue
        except OSError as error:
            raise DataError(f"cannot list the folder {root / folder}: {error.strerror}. Try again.") from error
        prefix = f"{folder}/" if folder else ""
        folders += [prefix + name for name in inner]
        for name in linked:
            heapq.heappush(links, prefix + name)
        changed = state.st_mtime_ns if state.st_mtime_ns < started - _FRESH else UNKNOWN
        files.sort()
        found[folder] = Listed(changed, len(files), pack(files), others)
        total += len(files)
        if total - reported >= _REPORT_EVERY:
            reported = total
            progress(total, 0)
    return found, sorted(unlistable)


def _list(folder: str) -> tuple[list[str], list[str], list[str], int]:
    """List the files, folders and links to folders in a folder, and count the other visible entries."""
    others, folders, links = list[os.DirEntry[str]](), list[str](), list[str]()
    try:
        with os.scandir(folder) as entries:  # most of the time of a large folder is spent on this line
            files = [entry.name for entry in entries if entry.is_file() or others.append(entry)]  # type: ignore[func-returns-value]
    except OSError as error:  # a link to itself; or the folder cannot be listed, which raises again here
        if is_transient(error):
            raise
        others.clear()
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if _holds(entry.is_file) or others.append(entry)]  # type: ignore[func-returns-value]
    visible = [entry for entry in others if not entry.name.startswith(".")]
    for entry in visible:
        if _holds(entry.is_dir):
            (links if entry.is_symlink() else folders).append(entry.name)
    return files, folders, links, len(visible) - len(folders) - len(links)


def _holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError as error:
        if is_transient(error):  # a file must not be missing because of a network error
            raise
        return False


def only_images(listed: list[Listed], suffixes: Collection[str]) -> tuple[NDArray[np.int64], bytes, dict[str, int]]:
    """Return the number of images in every folder, their names, and the number of other visible files by suffix.

    An image is a visible file with one of the suffixes, in lower or upper case.
    """
    packed = b"".join(folder.names for folder in listed)
    blob = np.frombuffer(packed, dtype=np.uint8)
    ends = np.flatnonzero(blob == 0)
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    code = np.zeros(len(ends), dtype=np.uint64)  # the last five characters as a number; a short name has a NUL there
    for back in range(1, 6):
        code |= _LOWER[blob[ends - back]] << np.uint64(8 * (back - 1))
    image = np.isin(code, _codes(suffixes, 5)) | np.isin(code & np.uint64(0xFFFFFFFF), _codes(suffixes, 4))
    visible = blob[starts] != ord(".")
    skipped = _count_suffixes(blob, starts, ends, visible & ~image)
    image &= visible
    folder_of = np.repeat(np.arange(len(listed)), [folder.files for folder in listed])
    counts = np.bincount(folder_of[image], minlength=len(listed))
    return counts, packed if image.all() else blob[np.repeat(image, ends - starts + 1)].tobytes(), skipped


def _codes(suffixes: Collection[str], length: int) -> NDArray[np.uint64]:
    """Return the suffixes of a length as numbers."""
    return np.array([int.from_bytes(suffix.encode(), "big") for suffix in suffixes if len(suffix) == length], np.uint64)


def _count_suffixes(
    blob: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> dict[str, int]:
    """Return how many of the chosen names, which lie in one run of bytes, have each suffix; most frequent first."""
    counts, everything = Counter[str](), blob.data
    for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True):
        name = bytes(everything[start:end]).decode("utf-8", "surrogateescape")
        suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - a Path per file is slow
        counts[suffix if len(suffix) <= _LONGEST_SUFFIX else ""] += 1
    return dict(counts.most_common())


def skipped_notes(kinds: Mapping[str, int]) -> list[str]:
    """Return a line about files that are not images, with a remedy where there is one; empty if there are none."""
    if not kinds:
        return []
    total, first = sum(kinds.values()), list(kinds.items())[:_KINDS_NAMED]
    named = [f"{count:,} {kind or 'without a suffix'}" for kind, count in first]
    rest = total - sum(count for _, count in first)
    named += [f"{rest:,} others"] if rest else []
    remedies = list(dict.fromkeys(words for kind in kinds if (words := remedy(kind))))
    advice = f" ({'; '.join(remedies)})" if remedies else ""
    return [f"skipped {total:,} file{'s' if total != 1 else ''}: {', '.join(named)}{advice}"]


def unlistable_notes(root: str, folders: Sequence[str]) -> list[str]:
    """Return one line about sub-folders that cannot be listed for lack of permission; none if there are none."""
    if not folders:
        return []
    named = ", ".join(f"{root}/{folder}" for folder in folders[:_FOLDERS_NAMED])
    more = f" and {len(folders) - _FOLDERS_NAMED:,} more" if len(folders) > _FOLDERS_NAMED else ""
    what = "1 sub-folder" if len(folders) == 1 else f"{len(folders):,} sub-folders"
    return [f"skipped {what} without permission to list: {named}{more}"]
