"""The index of a source: a few arrays in one file, which worker processes map instead of copying.

A million paths are one run of bytes and one array of ends, never a list of strings: reading a list changes the
reference counts of its strings, so every worker would soon hold its own copy.
"""

import hashlib
import json
import zlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.files.atomic import remove_unfinished, replacing
from carp.images.source import Source

_FORM = "carp index 1"
_ALIGN = 64
Arrays = Mapping[str, NDArray[Any]]


class Texts(Sequence[str]):
    """A sequence of texts that are created on access."""

    @abstractmethod
    def text(self, place: int) -> str:
        """Return the text at a position, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]
        return self.text(places) if isinstance(places, int) else [self.text(place) for place in places]


class Strings(Texts):
    """Texts as bytes, each followed by a NUL, which no file name contains."""

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._blob, self._ends = blob, ends

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, place: int) -> str:
        """Return the text at a position, counted from 0."""
        start = int(self._ends[place - 1]) + 1 if place else 0
        return self._blob[start : int(self._ends[place])].tobytes().decode("utf-8", "surrogateescape")

    def raw(self, places: NDArray[np.int64]) -> list[bytes]:
        """Return the texts at many positions, as bytes."""
        ends = self._ends[places].tolist()
        starts = np.where(places > 0, self._ends[places - 1] + 1, 0).tolist()
        everything = self._blob.data
        return [bytes(everything[start:end]) for start, end in zip(starts, ends, strict=True)]


def pack(texts: Collection[str]) -> bytes:
    """Return the bytes of a `Strings`; the bytes of two can be concatenated."""
    joined = "\0".join(texts)
    return f"{joined}\0".encode("utf-8", "surrogateescape") if texts else b""


def strings_arrays(name: str, packed: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a `Strings` under its name in an index."""
    blob = np.frombuffer(packed, dtype=np.uint8)
    return {name: blob, f"{name}_ends": np.flatnonzero(blob == 0).astype(np.int64)}


@dataclass
class Index:
    """Arrays, and the data that they describe.

    Attributes:
        of: The kind and the absolute path of the data; a stored index is found by it.
        about: Small values, stored as JSON.
        arrays: The arrays by name.
        file: The file, if it is stored; a copy for another process is then only this path.
    """

    of: str
    about: dict[str, Any]
    arrays: Arrays
    file: Path | None = field(default=None, compare=False)

    def strings(self, name: str) -> Strings:
        """Return the texts that were added with `strings_arrays`."""
        return Strings(self.arrays[name], self.arrays[f"{name}_ends"])

    def fingerprint(self, *names: str) -> str:
        """Return a hash of these arrays."""
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name} {self.arrays[name].dtype} {len(self.arrays[name])}\n".encode())
            digest.update(np.ascontiguousarray(self.arrays[name]).data)
        return digest.hexdigest()

    def kept(self, folder: Path) -> Self:
        """Store the index in a folder for `find_index`; if that fails, it stays in memory."""
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
                raise DataError(f"the index {self.file} changed while it was in use. Run the same command again.")


class IndexedSource(Source):
    """A source that is described by an `Index`: to send it to another process, only the index is copied."""

    _FROM_INDEX: ClassVar[frozenset[str]] = frozenset()
    index: Index

    def _set(self, index: Index) -> None:
        """Set the index; subclasses also store its arrays, in the attributes named in `_FROM_INDEX`."""
        self.index, self.fingerprint = index, str(index.about["fingerprint"])
        self.classes = tuple(index.about["classes"])

    def keep_index(self, folder: Path) -> None:
        """Store the index, so that the next command finds it and worker processes share it."""
        self._set(self.index.kept(folder))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._FROM_INDEX}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set(self.index)


def find_index(folder: Path | None, of: str) -> Index | None:
    """Return the stored index of some data; None if there is none, or if it is damaged or from another version."""
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
    """Write a line of JSON and the arrays, atomically."""
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
    with replacing(file) as beside, beside.open("wb") as out:
        out.writelines([line, *parts])


def _read(file: Path, *, check: bool = False) -> tuple[dict[str, Any], Arrays]:
    """Return the head and the memory-mapped arrays; `check` reads the whole file and raises ValueError on damage."""
    with file.open("rb") as opened:
        line = opened.readline()
    head = json.loads(line)
    if not isinstance(head, dict) or head.pop("form", None) != _FORM:
        raise ValueError("it has a different format")
    places, length, checksum = head.pop("arrays"), head.pop("bytes"), head.pop("crc32")
    if file.stat().st_size != len(line) + length:
        raise ValueError("its length has changed")
    body = np.memmap(file, dtype=np.uint8, mode="r", offset=len(line), shape=(length,)) if length else np.empty(0, "u1")
    if check and zlib.crc32(body.data) != checksum:
        raise ValueError("it is damaged")
    arrays = {}
    for name, (dtype, shape, start) in places.items():
        kind = np.dtype(dtype)
        stop = start + kind.itemsize * int(np.prod(shape))
        arrays[name] = np.asarray(body[start:stop]).view(kind).reshape(shape)
    return head, arrays
