"""Tar shards in WebDataset layout, read in place: an index holds the position of every image."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from carp.console.addresses import without_secrets
from carp.errors import DataError, UnreadableImageError
from carp.images.decoding.decode import Stored
from carp.images.decoding.decode_limits import check_bytes, out_of_memory
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.decoding.transient import retrying
from carp.images.index import Index, IndexedSource, find_index, pack, strings_arrays
from carp.images.labels import number_classes
from carp.images.remote.shard import Reader, Shard, identity_of, reading, stamp_of
from carp.images.source import Found, Opening, silent
from carp.images.sources.shard_files import is_folder_of, shards_of
from carp.images.sources.tar_headers import BrokenTarError, Member, members

_LARGEST_LABEL = 16 << 20  # bytes of a .cls or .json file
_GZIP = b"\x1f\x8b"
_AHEAD = 4 << 20  # bytes of a range request for headers, where a remote shard is not in the cache


class TarSource(IndexedSource):
    """The images of tar shards, in the order of shards and members.

    Members that share their path up to the first dot of the file name are one sample: an image by its suffix, and
    optionally a label, which is the text of `.cls`, or `label` or `cls` in `.json`. Images are fetched by position, and
    no file stays open between two calls, so that threads and processes may share a source.
    """

    kind = "tar"
    example = "tar shards (.tar)"
    suffixes = frozenset({".tar", ".tar.gz", ".tgz"})  # the last two are refused, with a remedy
    claim_order = 10
    label_remedy = "add a .cls file to every sample"
    _FROM_INDEX = frozenset({"labels", "groups", "_names", "_shard_of", "_start", "_size"})

    def __init__(
        self, shards: Sequence[Shard], *, name: str, index: Path | None = None, progress: Found = silent
    ) -> None:
        self.shards, self.name = shards, name
        of = "tar:" + "\0".join(map(identity_of, shards))
        stamp = [_stamp(shard) for shard in shards]
        stored = find_index(index, of)
        current = stored is not None and stored.about["stamp"] == stamp
        self._set(stored if stored is not None and current else _build(shards, of, stamp, progress))

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim a file, a pattern of files, or a folder of them."""
        return super().claims(data) or is_folder_of(data, {".tar"})

    @classmethod
    def open(cls, data: str, how: Opening) -> "TarSource":
        """Open all shards that the text means."""
        shards = shards_of(data, ".tar", cache_gb=how.cache_gb)
        return TarSource(shards, name=without_secrets(data), index=how.index, progress=how.progress)

    def _set(self, index: Index) -> None:
        super()._set(index)
        self.labels = index.arrays["labels"] if self.classes else None
        self.groups = index.arrays["groups"]
        self._names, self._shard_of = index.strings("names"), index.arrays["shard_of"]
        self._start, self._size = index.arrays["start"], index.arrays["size"]

    def __len__(self) -> int:
        return len(self._start)

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one member."""
        shard, size = self.shards[self._shard_of[index]], int(self._size[index])
        check_bytes(size, self.place(index))
        try:
            found = retrying(partial(_read_at, shard, int(self._start[index]), size), shard)
        except OSError as error:
            raise UnreadableImageError(self.place(index), error.strerror or str(error)) from error
        except MemoryError:
            raise out_of_memory(self.place(index)) from None
        if len(found) < size:
            raise UnreadableImageError(self.place(index), "the shard ends before the image does")
        return found

    def place(self, index: int) -> str:
        """Return the shard and the name of one member."""
        return f"{self.shards[self._shard_of[index]]}: {self._names[index]}"


def _read_at(shard: Shard, start: int, size: int) -> bytes:
    with reading(shard) as file:
        return file.read_at(start, size)


@dataclass
class _Found:
    """The content of the shards, with one entry per image."""

    names: list[bytes] = field(default_factory=list)
    shard_of: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)


def _build(shards: Sequence[Shard], of: str, stamp: list[list[int | str]], progress: Found) -> Index:
    found, groups = _Found(), list[int]()
    for number, shard in enumerate(shards):
        before = len(found.start)
        try:
            retrying(partial(_walk, shard, number, found), shard)
        except OSError as error:
            raise DataError(f"cannot read the shard {shard}: {error.strerror}. Check the path.") from error
        groups.append(len(found.start) - before)
        progress(len(found.start), 0)
    if not found.start:
        raise DataError(
            f"there are no images in {shards[0]}{' and the other shards' if len(shards) > 1 else ''}: a sample is "
            f"named KEY.jpg, where KEY has no dot (looked for {', '.join(sorted(SUFFIXES))})."
        )
    words = [label for label in found.labels if label is not None]
    labels, classes = number_classes(words if len(words) == len(found.labels) else [])
    arrays = {
        **strings_arrays("names", b"".join(found.names)),
        "shard_of": np.array(found.shard_of, dtype=np.int32),
        "start": np.array(found.start, dtype=np.int64),
        "size": np.array(found.size, dtype=np.int64),
        "labels": labels,
        "groups": np.array(groups, dtype=np.int64),
    }
    index = Index(of, {"stamp": stamp, "classes": classes}, arrays)
    index.about["fingerprint"] = index.fingerprint("names", "start", "size", "labels", "groups")
    return index


def _walk(shard: Shard, number: int, found: _Found) -> None:
    """Add the samples of a shard to `found`."""
    images, labels = dict[str, Member](), dict[str, str]()
    try:
        with reading(shard, ahead=_AHEAD) as file:
            if file.read_at(0, 2) == _GZIP:
                raise DataError(f"the shard {shard} is compressed, so its images cannot be read by position: "
                                f"decompress it (gunzip -c {shard} > PLAIN.tar) and give that file.")  # fmt: skip
            for member in members(file):
                _sort_in(file, member, images, labels)
    except BrokenTarError as error:
        raise DataError(f"the shard {shard} is broken: {error}. Download or write it again, or leave it out.") from None
    found.names.append(pack([member.name for member in images.values()]))
    found.shard_of += [number] * len(images)
    found.start += [member.start for member in images.values()]
    found.size += [member.size for member in images.values()]
    found.labels += [labels.get(key) for key in images]


def _sort_in(file: Reader, member: Member, images: dict[str, Member], labels: dict[str, str]) -> None:
    """Record a member as the image or the label of its sample."""
    folder, slash, name = member.name.rpartition("/")
    stem, dot, kind = name.partition(".")
    if not stem:
        return  # hidden
    key, suffix = f"{folder}{slash}{stem}", (dot + kind).lower()
    if suffix in SUFFIXES:
        images.setdefault(key, member)
    elif suffix == ".cls":
        label = _small(file, member).decode("utf-8", "replace").strip()
        if label:
            labels[key] = label
    elif suffix == ".json" and key not in labels:
        word = _label_in_json(_small(file, member))
        if word is not None:
            labels[key] = word


def _small(file: Reader, member: Member) -> bytes:
    """Return the bytes of a label; none for a member that is too large to be one."""
    return file.read_at(member.start, member.size) if member.size <= _LARGEST_LABEL else b""


def _label_in_json(text: bytes) -> str | None:
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets
        return None
    if not isinstance(about, dict):
        return None
    label = about.get("label", about.get("cls"))
    return str(label) if isinstance(label, int | str) and str(label).strip() else None


def _stamp(shard: Shard) -> list[int | str]:
    try:
        return stamp_of(shard)
    except OSError as error:
        raise DataError(f"cannot read the shard {shard}: {error.strerror}. Check the path.") from error
