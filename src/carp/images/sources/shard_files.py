"""Expands an argument into shards, local or remote: brace ranges, globs, or a folder of shards."""

import glob
import os
import re
from collections.abc import Collection
from pathlib import Path

from carp.console.addresses import is_address, last_name, without_secrets
from carp.errors import DataError
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.remote.find_shards import find_remote, names_in
from carp.images.remote.shard import RemoteShard, Shard
from carp.images.remote.shard_cache import ShardCache
from carp.images.source import is_collection

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 1_000_000


def shards_of(pattern: str, suffix: str, *, cache_gb: float | None = None) -> list[Shard]:
    """Return the files that a pattern, a folder or a file means, on this machine or on a server."""
    if not is_address(pattern):
        return list(files_of(pattern, suffix))
    cache = ShardCache.of(cache_gb)
    return [RemoteShard(file, cache) for file in find_remote(pattern, expand_braces(pattern), suffix)]


def files_of(pattern: str, suffix: str) -> list[Path]:
    """Return the files that `a-{000..009}.tar`, `a-{x,y}.tar`, `a-*.tar`, a folder or a file means, in order.

    Every file of a range must exist; a glob or a folder must give at least one file.
    """
    path = Path(pattern).expanduser()
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() == suffix and not p.name.startswith("."))
        if not found:
            raise DataError(f"there are no {suffix} files in the folder {pattern}: give a folder that contains some.")
        return found
    if path.is_file():
        return [path]
    files, missing = list[Path](), list[str]()
    for word in expand_braces(str(path)):
        matches = sorted(glob.glob(word)) if glob.has_magic(word) else [word]  # noqa: PTH207 - patterns may be absolute
        files += [Path(match) for match in matches if Path(match).is_file()]
        if not matches or not Path(matches[0]).is_file():
            missing.append(word)
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        what = "no file matches" if glob.has_magic(missing[0]) else "there is no file"
        asked = f", which {pattern} refers to" if missing[0] != pattern else ""
        raise DataError(f"{what} {missing[0]}{more}{asked}. Check the path.")
    return files


def is_folder_of(data: object, suffixes: Collection[str]) -> bool:
    """Return whether data are a folder with visible files of these suffixes, and neither images nor other folders."""
    if is_address(data):
        address = str(data)
        if is_pattern(address) or is_collection(Path(last_name(address))):
            return False
        return any(name.lower().endswith(tuple(suffixes)) for name in names_in(address))
    folder = Path(str(data)).expanduser()
    if not isinstance(data, str | Path) or not folder.is_dir():
        return False
    found = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a Path per file is slow
            if suffix in SUFFIXES or (suffix not in suffixes and entry.is_dir()):
                return False
            found = found or suffix in suffixes
    return found


def is_pattern(text: str) -> bool:
    """Return whether a text has the form of a glob or of a brace range."""
    return glob.has_magic(text) or _BRACES.search(text) is not None


def expand_braces(pattern: str) -> list[str]:
    """`a{0..2}` gives a0, a1, a2 (`{00..02}` keeps the zeros), `{x,y}` gives x and y; braces combine."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    inside = braces.group(1)
    if limits := _RANGE.fullmatch(inside):
        low, high = limits.groups()
        if not int(low) <= int(high) < int(low) + _MOST:
            raise DataError(
                f"the range {braces.group()} in {without_secrets(pattern)} must ascend and have at most {_MOST:,} "
                "numbers."
            )
        width = len(low) if low.startswith("0") or len(low) == len(high) else 0
        words = [str(number).zfill(width) for number in range(int(low), int(high) + 1)]
    elif "," in inside:
        words = inside.split(",")
    else:
        raise DataError(
            f"{braces.group()} in {without_secrets(pattern)} is neither a range like {{000..009}} nor a choice like "
            "{a,b}."
        )
    rest = expand_braces(pattern[braces.end() :])
    return [pattern[: braces.start()] + word + after for word in words for after in rest]
