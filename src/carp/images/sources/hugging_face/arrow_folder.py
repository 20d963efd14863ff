"""Folders that `Dataset.save_to_disk` of Hugging Face `datasets` writes, read with pyarrow alone."""

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from carp.errors import DataError, MissingExtraError, UnreadableImageError
from carp.files.regular import check_regular, read_text
from carp.images.decoding.decode import Stored
from carp.images.decoding.decode_limits import out_of_memory
from carp.images.decoding.transient import retrying
from carp.images.source import Found, Opening, Source, as_path, is_text, silent
from carp.images.sources.hugging_face.image_columns import (
    check_columns,
    encoded,
    image_columns,
    labels_and_classes,
    words_of,
)

_STATE, _SPLITS = "state.json", "dataset_dict.json"


class ArrowSource(Source):
    """The rows of the Arrow files in such a folder, in the order of `state.json`.

    The files are mapped, not read: a row is copied when it is fetched. Every process maps them itself.
    """

    kind = "arrow"
    example = "a folder of Dataset.save_to_disk"
    claim_order = 5  # before the folders of images
    label_remedy = "add a column 'label'"

    def __init__(self, folder: Path, *, name: str, progress: Found = silent) -> None:
        self.folder, self.name = folder, name
        self._files = _files(folder)
        counts, words, digest = list[int](), list[str](), hashlib.sha256()
        self._tables: tuple[int, list[Any]] = (os.getpid(), [])
        label_column: str | None = None
        names: list[str] | None = None
        for number, file in enumerate(self._files):
            table = _open(file)
            if not number:
                self._column, label_column, names = image_columns(file, table.schema)
                digest.update(json.dumps(names).encode())
            check_columns(file, table.schema, self._column, label_column)
            counts.append(table.num_rows)
            digest.update(f"{table.num_rows} {table.nbytes}\n".encode())
            if label_column is not None:
                words += words_of(table.column(label_column).to_pylist())
            self._tables[1].append(table.column(self._column))
            progress(sum(counts), 0)
        self._ends = np.cumsum(np.array(counts, dtype=np.int64))
        if not counts or not len(self):
            raise DataError(f"there are no images in {name}: it has no rows. Give a folder with rows.")
        self.labels, self.classes = labels_and_classes(words, names, len(self))
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        self.fingerprint = digest.hexdigest()

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim a folder with the files that `save_to_disk` writes."""
        if not is_text(data):
            return False
        folder = as_path(data)
        return ((folder / _STATE).is_file() and any(folder.glob("*.arrow"))) or (folder / _SPLITS).is_file()

    @classmethod
    def open(cls, data: str, how: Opening) -> "ArrowSource":
        """Open the folder."""
        return ArrowSource(as_path(data), name=data, progress=how.progress)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def fetch(self, index: int) -> Stored:
        """Return the bytes of one image."""
        if self._tables[0] != os.getpid() or not self._tables[1]:  # a forked or copied source
            self._tables = (os.getpid(), [_open(file).column(self._column) for file in self._files])
        number = int(np.searchsorted(self._ends, index, side="right"))
        column = self._tables[1][number]
        try:
            stored = encoded(column[index - (int(self._ends[number - 1]) if number else 0)].as_py())
        except (OSError, ValueError) as error:
            raise UnreadableImageError(self.place(index), " ".join(str(error).split())) from error
        except MemoryError:
            raise out_of_memory(self.place(index)) from None
        if stored is None:
            raise UnreadableImageError(self.place(index), "the row has no bytes")
        return stored

    def place(self, index: int) -> str:
        """Return the folder and the number of the row."""
        return f"{self.name}: row {index}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": (0, [])}


def _files(folder: Path) -> list[Path]:
    """Return the Arrow files that `state.json` names, which must be in the folder."""
    if (folder / _SPLITS).is_file() and not (folder / _STATE).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{_STATE}"))
        if not splits:
            raise DataError(f"{folder} belongs to a dataset with splits, but contains none of them: write it again.")
        raise DataError(f"{folder} has the splits {', '.join(splits)}: give one of them, e.g. {folder / splits[0]}.")
    try:
        listed = json.loads(retrying(partial(read_text, folder / _STATE), folder / _STATE))["_data_files"]
        names = [str(entry["filename"]) for entry in listed]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it does not list the data files"
        raise DataError(
            f"cannot read {folder / _STATE}: {reason}. Give a folder written by Dataset.save_to_disk."
        ) from error
    if outside := [name for name in names if Path(name).name != name]:
        raise DataError(f"{folder / _STATE} names {outside[0]}, which is not in the folder: write the dataset again.")
    if not names:
        raise DataError(f"there are no images in {folder}: {_STATE} lists no files. Give a folder with rows.")
    return [folder / name for name in names]


def _open(file: Path) -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError("Arrow files need pyarrow. Run `pip install 'carp-ssl[parquet]'`.") from None

    def table() -> Any:
        check_regular(file)
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            return stream.read_all()

    try:
        return retrying(table, file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).rstrip(".")
        raise DataError(f"cannot read the Arrow file {file}: {reason}. Replace it or leave it out.") from error
