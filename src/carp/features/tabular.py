"""Write stored features for other programs: as one Parquet or CSV file, in batches of a few thousand rows."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, MissingExtraError
from carp.features.extract import Features
from carp.features.store import Store
from carp.files.atomic import replacing

_ROWS = 4096


def write_csv(store: Store) -> Path:
    """Write `features.csv`: path, label (names of classes, separated by semicolons), then the features."""
    path = store.folder / "features.csv"
    try:
        with (
            replacing(path) as beside,
            beside.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(["path", "label", *(f"f{i}" for i in range(store.features.shape[1]))])
            for places, labels, features in _rows(store):
                names = [";".join(named) for named in labels]
                rows = zip(places, names, features, strict=True)
                writer.writerows([place, name, *map(str, vector)] for place, name, vector in rows)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def write_parquet(store: Store) -> Path:
    """Write `features.parquet`: path, label (a list of names), features (a list of float32 of fixed length)."""
    pa, pq = require_pyarrow("--format parquet")
    path = store.folder / "features.parquet"
    width = store.features.shape[1]
    schema = pa.schema(
        [("path", pa.string()), ("label", pa.list_(pa.string())), ("features", pa.list_(pa.float32(), width))]
    )
    try:
        with replacing(path) as beside, pq.ParquetWriter(beside, schema) as writer:
            for places, labels, features in _rows(store):
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
                texts = [place.encode("utf-8", "backslashreplace").decode() for place in places]
                writer.write_batch(
                    pa.record_batch([pa.array(texts), pa.array(labels, schema[1].type), vectors], schema)
                )
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write named columns of equal length as a .csv or .parquet file, atomically; text may hold any bytes of a name."""
    texts = {name: [_utf8(value) for value in values] for name, values in columns.items()}
    with replacing(path) as beside:
        if path.suffix.lower() == ".parquet":
            pa, pq = require_pyarrow(str(path))
            pq.write_table(pa.table(texts), beside)
            return
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(texts)
            writer.writerows(zip(*texts.values(), strict=True))


def _utf8(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def require_pyarrow(what: str) -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet; if they are not installed, the error says that `what` needs them."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError(f"{what} needs pyarrow. Run `pip install 'carp-ssl[parquet]'`.") from None
    return pa, pq


def _rows(store: Store) -> Iterator[tuple[list[str], list[list[str]], Features]]:
    places = store.places()
    for start in range(0, len(store.features), _ROWS):
        features = np.array(store.features[start : start + _ROWS])
        labels = None if store.labels is None else store.labels[start : start + _ROWS]
        yield list(islice(places, len(features))), _names(labels, store.classes, len(features)), features


def _names(labels: NDArray[Any] | None, classes: tuple[str, ...], count: int) -> list[list[str]]:
    """Return the names of the classes of every image."""
    if labels is None:
        return [[] for _ in range(count)]
    if labels.ndim == 1:
        return [[_name(classes, int(label))] if label >= 0 else [] for label in labels]
    return [[_name(classes, int(label)) for label in np.flatnonzero(row > 0)] for row in labels]


def _name(classes: tuple[str, ...], label: int) -> str:
    return classes[label] if label < len(classes) else str(label)


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {path}: {error.strerror or error}. Free some space, then rerun the command.")
