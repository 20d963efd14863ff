"""Parquet files with a column of encoded images, as Hugging Face `datasets` writes them."""

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from carp.console.addresses import without_secrets
from carp.errors import DataError, MissingExtraError, UnreadableImageError
from carp.files.regular import check_regular
from carp.images.decoding.decode import Stored
from carp.images.decoding.decode_limits import out_of_memory
from carp.images.decoding.transient import retrying
from carp.images.remote.shard import ReaderFile, Shard, reading
from carp.images.source import Found, Opening, Source, silent
from carp.images.sources.hugging_face.image_columns import (
    check_columns,
    encoded,
    image_columns,
    labels_and_classes,
    words_of,
)
from carp.images.sources.shard_files import is_folder_of, shards_of

_AHEAD = 64 << 10  # bytes of a range request for the description of a remote file
_WINDOW_BYTES = 256 << 20  # of images that are mixed: to read one image, its whole row group must be read
_HELD_BYTES = 2 * _WINDOW_BYTES  # by a process: a window, and the next one that a batch may reach into


class ParquetSource(Source):
    """The rows of Parquet files, in their order.

    A row group is the smallest unit that can be read, so each process holds the last few, and `groups` and `window`
    ask for an order that stays within them for a while.
    """

    kind = "parquet"
    example = "Parquet files (.parquet)"
    suffixes = frozenset({".parquet"})
    claim_order = 20
    label_remedy = "add a column 'label'"

    def __init__(self, files: Sequence[Shard], *, name: str, progress: Found = silent) -> None:
        self.files, self.name = files, name
        with _open(files[0]) as first:
            self._column, label_column, names = image_columns(files[0], first.schema_arrow)
        counts, places, total_bytes, words, digest = list[int](), list[tuple[int, int]](), 0, list[str](), _sha(names)
        for number, file in enumerate(files):
            with _open(file) as table:
                check_columns(file, table.schema_arrow, self._column, label_column)
                for group in range(table.num_row_groups):
                    about = table.metadata.row_group(group)
                    counts.append(about.num_rows)
                    places.append((number, group))
                    total_bytes += about.total_byte_size
                    digest.update(f"{about.num_rows} {about.total_byte_size}\n".encode())
                if label_column is not None:
                    words += _words(file, table, label_column)
            progress(sum(counts), 0)
        self.groups = self._rows = np.array(counts, dtype=np.int64)  # of every row group
        self._ends, self._places = np.cumsum(self._rows), np.array(places, dtype=np.int32).reshape(-1, 2)
        if not counts or not self._ends[-1]:
            raise DataError(f"there are no images in {name}: it has no rows. Give files with rows.")
        self.window = max(1, int(_WINDOW_BYTES * self._ends[-1] / max(1, total_bytes)))
        self.labels, self.classes = labels_and_classes(words, names, len(self))
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        self.fingerprint = digest.hexdigest()
        self._held = _Held()

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim a file, a pattern of files, or a folder of them."""
        return super().claims(data) or is_folder_of(data, cls.suffixes)

    @classmethod
    def open(cls, data: str, how: Opening) -> "ParquetSource":
        """Open all files that the text means."""
        files = shards_of(data, ".parquet", cache_gb=how.cache_gb)
        return ParquetSource(files, name=without_secrets(data), progress=how.progress)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one image."""
        group = int(np.searchsorted(self._ends, index, side="right"))
        row = index - int(self._ends[group] - self._rows[group])
        if self._held.process != os.getpid():  # a forked worker must not share files or locks
            self._held = _Held()
        number, place = (int(i) for i in self._places[group])
        try:
            column = self._held.group(self.files[number], place, self._column, key=group)
            value = column[row].as_py()
        except (OSError, ValueError) as error:
            raise UnreadableImageError(self.place(index), " ".join(str(error).split())) from error
        except MemoryError:
            raise out_of_memory(self.place(index)) from None
        stored = encoded(value)
        if stored is None:
            raise UnreadableImageError(self.place(index), "the row has no bytes")
        return stored

    def place(self, index: int) -> str:
        """Return the file and the number of one row in it."""
        group = int(np.searchsorted(self._ends, index, side="right"))
        number = int(self._places[group, 0])
        first = int(self._rows[: int(np.searchsorted(self._places[:, 0], number))].sum())
        return f"{self.files[number]}: row {index - first}"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_held"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._held = _Held()


class _Held:
    """The row groups that a process read last."""

    def __init__(self) -> None:
        self.process, self._lock = os.getpid(), threading.Lock()
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def group(self, file: Shard, place: int, column: str, *, key: int) -> Any:
        """Return the image column of a row group."""
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key]
            found = retrying(partial(_row_group, file, place, column), file)
            self._groups[key] = found
            self._bytes += found.nbytes
            while self._bytes > _HELD_BYTES and len(self._groups) > 1:
                self._bytes -= self._groups.popitem(last=False)[1].nbytes
            return found


def _row_group(file: Shard, place: int, column: str) -> Any:
    with _table(file, whole=True) as opened:
        return opened.read_row_group(place, columns=[column], use_threads=False).column(0)


def _parquet() -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError("Parquet files need pyarrow. Run `pip install 'carp-ssl[parquet]'`.") from None
    return pyarrow.parquet


@contextmanager
def _open(file: Shard) -> Iterator[Any]:
    """Open a file for its description and its labels; a remote one by range requests."""
    _parquet()
    with ExitStack() as stack:
        try:
            if isinstance(file, Path):
                retrying(partial(check_regular, file), file)
            table = retrying(lambda: stack.enter_context(_table(file, whole=False)), file)
        except (OSError, ValueError) as error:
            raise _broken(file, error) from error
        yield table


@contextmanager
def _table(file: Shard, *, whole: bool) -> Iterator[Any]:
    parquet = _parquet()
    if isinstance(file, Path):
        with parquet.ParquetFile(file) as opened:
            yield opened
        return
    with reading(file, whole=whole, ahead=_AHEAD) as reader, parquet.ParquetFile(ReaderFile(reader)) as opened:
        yield opened


def _broken(file: Shard, error: Exception) -> DataError:
    strerror = getattr(error, "strerror", None)  # pyarrow's errors have none
    reason = " ".join(str(strerror or error).split()).rstrip(".")
    return DataError(f"cannot read the Parquet file {file}: {reason}. Replace it or leave it out.")


def _sha(names: list[str] | None) -> Any:
    return hashlib.sha256(json.dumps(names).encode())


def _words(file: Shard, table: Any, column: str) -> list[str]:
    """Return the labels of a file; empty when a label is missing, or when they are neither numbers nor words."""
    try:
        read = partial(table.read, columns=[column], use_threads=False)
        values = retrying(read, file).column(0).to_pylist()
    except (OSError, ValueError) as error:
        raise _broken(file, error) from error
    return words_of(values)
