"""Digests of files and JSON objects, and a check whether a file still matches its digest."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHUNK = 2**22  # bytes with a digest of their own
_QUICK = 16  # chunks of a file that are verified when it is opened


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an object as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digests_of(path: Path) -> dict[str, Any]:
    """Return the size of a file and the SHA-256 of each of its chunks, for a manifest."""
    with path.open("rb") as file:
        chunks = [hashlib.sha256(chunk).hexdigest() for chunk in iter(lambda: file.read(_CHUNK), b"")]
        return {"bytes": file.tell(), "chunk": _CHUNK, "sha256": chunks}


def damage_of(path: Path, expected: Mapping[str, Any], *, everything: bool = False) -> str | None:
    """Describe how a file differs from its digests; None if it does not.

    Args:
        path: The file.
        expected: The value that `digests_of` returned when the file was written.
        everything: Read all of a large file. Otherwise, if it has more than 16 chunks (64 MB), only its size and 16
            chunks are checked: the first, the last, and others evenly between.
    """
    size, step, digests = expected["bytes"], expected["chunk"], expected["sha256"]
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                return f"it has {found:,} bytes, not {size:,}"
            for number in range(len(digests)) if everything else _spread(len(digests), _QUICK):
                file.seek(number * step)
                if hashlib.sha256(file.read(step)).hexdigest() != digests[number]:
                    return f"bytes {number * step:,} to {min((number + 1) * step, size):,} do not match their digest"
    except OSError as error:
        return str(error.strerror or error).lower()
    return None


def _spread(count: int, wanted: int) -> list[int]:
    """Return `wanted` numbers below `count`, evenly spread, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return [i * (count - 1) // (wanted - 1) for i in range(wanted)]
