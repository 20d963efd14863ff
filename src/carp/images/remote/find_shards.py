"""Expands an address into the shards on a server: brace ranges, globs, folders, datasets of the Hugging Face Hub."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from carp.console.addresses import last_name, public, scheme_of
from carp.errors import DataError
from carp.images.remote.remote_file import RemoteFile, ask, describe, described

_REQUESTS = 16  # at the same time
_HUB_DATASET = re.compile(r"hf://datasets/[^/]+/[^/]+/?")
_TRAIN = re.compile(r"(?:^|[-_./])train(?:[-_./]|$)")


def find_remote(address: str, words: Iterable[str], suffix: str) -> list[RemoteFile]:
    """Return the files of an address in order; `words` is the address with its braces expanded.

    Every file of a range must exist; a glob or a folder must give at least one file.
    """
    try:
        if not last_name(address).lower().endswith(suffix) and not _is_glob(address):
            return _in_folder(address, suffix)
        found = list[RemoteFile]()
        plain = list[str]()
        for word in words:
            if _is_glob(word):
                found += _matching(word)
            else:
                plain.append(word)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return found + list(pool.map(_existing, plain))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"cannot read {public(address)}: {reason}. Check the address.") from None


@lru_cache(maxsize=8)
def names_in(address: str) -> tuple[str, ...]:
    """Return the names of the files in a folder of a server, or of all files of a dataset of the Hub."""
    return tuple(path.rpartition("/")[2] for path in _listing(address))


def _is_glob(address: str) -> bool:
    marks = "*[" if scheme_of(address).startswith("http") else "*[?"
    return any(mark in public(address) for mark in marks)


def _existing(address: str) -> RemoteFile:
    try:
        return describe(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"cannot read {public(address)}: {reason}. Check the address.") from None


def _matching(pattern: str) -> list[RemoteFile]:
    found = ask(pattern, _glob)
    if not found:
        raise DataError(f"no file matches {public(pattern)}. Check the address.")
    return [_from_listing(pattern, found[name]) for name in sorted(found)]


def _in_folder(address: str, suffix: str) -> list[RemoteFile]:
    listing = {path: info for path, info in _listing(address).items() if path.lower().endswith(suffix)}
    if not listing:
        raise DataError(
            f"there are no {suffix} files in {public(address)}: give the address of a folder that contains some."
        )
    if _HUB_DATASET.fullmatch(address):
        listing = _training_files(address, listing)
    return [_from_listing(address, listing[path]) for path in sorted(listing)]


def _training_files(address: str, listing: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the training split; those of another are given by a pattern."""
    train = {path: info for path, info in listing.items() if _TRAIN.search(path)} or listing
    folders = sorted({path.rpartition("/")[0] for path in train})
    if len(folders) > 1:
        raise DataError(f"{address} has several configurations ({', '.join(folders[:8])}): give the files of one, "
                        f"such as 'hf://{folders[0]}/*{last_name(next(iter(train)))[-8:]}'.")  # fmt: skip
    return train


def _listing(address: str) -> dict[str, Any]:
    return ask(address, partial(_list, recursive=_HUB_DATASET.fullmatch(address) is not None))


def _glob(files: Any, path: str) -> dict[str, Any]:
    files.invalidate_cache()
    found = files.glob(path, detail=True)
    return {name: info for name, info in found.items() if info.get("type") != "directory"}


def _list(files: Any, path: str, *, recursive: bool) -> dict[str, Any]:
    files.invalidate_cache()
    entries = files.find(path, detail=True).values() if recursive else files.ls(path, detail=True)
    return {
        entry["name"]: entry
        for entry in entries
        if entry.get("type") != "directory" and not entry["name"].rpartition("/")[2].startswith(".")
    }


def _from_listing(address: str, info: dict[str, Any]) -> RemoteFile:
    """Return a file from its entry in a listing; it is asked for where the listing lacks its size or version."""
    name = str(info["name"])
    full = name if "://" in name else f"{scheme_of(address)}://{name.lstrip('/')}"
    chained = address.partition("::")
    full = f"{full}::{chained[2]}" if chained[1] else full
    known = info.get("size") is not None and not scheme_of(address).startswith("http")
    return described(full, info) if known else describe(full)
