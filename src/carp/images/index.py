"""What a source knows of its images, as a few arrays in one file that worker processes map instead of copying.

A million paths are one run of bytes and one array of ends, never a list of strings: a list would be copied into every
worker as soon as it is read there, reference counts and all.
"""

import hashlib
import json
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.files.atomic import remove_unfinished, replacing

_FORM = "carp index 1"
_ALIGN = 64
Arrays = Mapping[str, NDArray[Any]]
Found = Callable[[int, int], None]  # called with (images found so far, 0: nobody knows how many there are)


def silent(_found: int, _all: int) -> None:
    """Report nothing."""


class Texts(Sequence[str]):
    """Texts that are put together when they are asked for."""

    @abstractmethod
    def text(self, place: int) -> str:
        """The text at a place, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]
        return self.text(places) if isinstance(places, int) else [self.text(place) for place in places]


class Strings(Texts):
    """Texts as bytes, each ended by a NUL, which no file name contains."""

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._blob, self._ends = blob, ends

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, place: int) -> str:
        """The text at a place, counted from 0."""
        start = int(self._ends[place - 1]) + 1 if place else 0
        return self._blob[start : int(self._ends[place])].tobytes().decode("utf-8", "surrogateescape")

    def raw(self, places: NDArray[np.int64]) -> list[bytes]:
        """Many texts at once, as bytes."""
        ends = self._ends[places].tolist()
        starts = np.where(places > 0, self._ends[places - 1] + 1, 0).tolist()
        everything = self._blob.data
        return [bytes(everything[start:end]) for start, end in zip(starts, ends, strict=True)]


def pack(texts: Collection[str]) -> bytes:
    """The bytes of a `Strings`; several of them may be joined."""
    joined = "\0".join(texts)
    return f"{joined}\0".encode("utf-8", "surrogateescape") if texts else b""


def strings_arrays(name: str, packed: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a `Strings` under its name in an index."""
    blob = np.frombuffer(packed, dtype=np.uint8)
    return {name: blob, f"{name}_ends": np.flatnonzero(blob == 0).astype(np.int64)}


@dataclass
class Index:
    """Arrays, and what they were made from.

    Attributes:
        of: The kind and the absolute place of the data; a stored index is found by it.
        about: Small facts that fit into JSON.
        arrays: By name.
        file: Where it is stored, if it is; then a copy for another process is this path and nothing else.
    """

    of: str
    about: dict[str, Any]
    arrays: Arrays
    file: Path | None = field(default=None, compare=False)

    def strings(self, name: str) -> Strings:
        """Texts that were added with `strings_arrays`."""
        return Strings(self.arrays[name], self.arrays[f"{name}_ends"])

    def fingerprint(self, *names: str) -> str:
        """A hash of these arrays."""
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name} {self.arrays[name].dtype} {len(self.arrays[name])}\n".encode())
            digest.update(np.ascontiguousarray(self.arrays[name]).data)
        return digest.hexdigest()

    def kept(self, folder: Path) -> Self:
        """Store it in a folder, where `find_index` finds it; when the disk refuses, it stays in memory."""
        if self.file is not None:
            return self
        file = _file_of(self.of, folder)
        try:
            _write(file, {"of": self.of, "about": self.about}, self.arrays)
        except OSError:
            return self
        return type(self)(self.of, self.about, _read(file)[1], file)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.file is not None:
            del state["arrays"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.file is not None:
            try:
                head, self.arrays = _read(self.file)
            except (OSError, ValueError) as error:
                raise DataError(f"cannot read the index {self.file}: {error}. Run the same command again.") from error
            if head["about"]["fingerprint"] != self.about["fingerprint"]:
                raise DataError(f"the index {self.file} changed under a running process. Run the same command again.")


def find_index(folder: Path | None, of: str) -> Index | None:
    """The stored index of some data; None when there is none, or it is broken or from another version."""
    if folder is None:
        return None
    file = _file_of(of, folder)
    try:
        head, arrays = _read(file, check=True)
        if head["of"] != of:
            return None
        return Index(of, head["about"], arrays, file)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_index_file(file: Path) -> None:
    """Raise ValueError if a stored index is damaged."""
    _read(file, check=True)


def _file_of(of: str, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(of.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.index"


def _write(file: Path, head: dict[str, Any], arrays: Arrays) -> None:
    """A line of JSON, then the arrays; whole or not at all."""
    places, start, checksum, parts = {}, 0, 0, list[Any]()
    for name, array in arrays.items():
        data = np.ascontiguousarray(array)
        padding = bytes(-data.nbytes % _ALIGN)
        checksum = zlib.crc32(padding, zlib.crc32(data.data, checksum))
        places[name] = [data.dtype.str, list(data.shape), start]
        start += data.nbytes + len(padding)
        parts += [data.data, padding]
    line = json.dumps({"form": _FORM, **head, "arrays": places, "bytes": start, "crc32": checksum}).encode()
    line += b" " * (-(len(line) + 1) % _ALIGN) + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(file.parent)
    with replacing(file, shared=True) as beside, beside.open("wb") as out:
        out.writelines([line, *parts])


def _read(file: Path, *, check: bool = False) -> tuple[dict[str, Any], Arrays]:
    """The head and the arrays, mapped; `check` reads all of it to find damage, which is raised as ValueError."""
    with file.open("rb") as opened:
        line = opened.readline()
    head = json.loads(line)
    if not isinstance(head, dict) or head.pop("form", None) != _FORM:
        raise ValueError("another form")
    places, length, checksum = head.pop("arrays"), head.pop("bytes"), head.pop("crc32")
    if file.stat().st_size != len(line) + length:
        raise ValueError("another length")
    body = np.memmap(file, dtype=np.uint8, mode="r", offset=len(line), shape=(length,)) if length else np.empty(0, "u1")
    if check and zlib.crc32(body.data) != checksum:
        raise ValueError("damaged")
    arrays = {}
    for name, (dtype, shape, start) in places.items():
        kind = np.dtype(dtype)
        stop = start + kind.itemsize * int(np.prod(shape))
        arrays[name] = np.asarray(body[start:stop]).view(kind).reshape(shape)
    return head, arrays
