"""What a protocol predicts for every test image, as a file: CSV, or Parquet by its suffix."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carp.commands.labelled import Labelled
from carp.commands.protocols import ALL, PROTOCOLS
from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Labels
from carp.evaluation.result import Result
from carp.features.tabular import require_pyarrow
from carp.files.atomic import replacing

_SUFFIXES = (".csv", ".parquet")


def check_predictions(path: str | Path, protocol: str) -> Path:
    """Refuse, before anything is computed, a file or a protocol that predictions cannot be written for."""
    file = Path(path)
    if protocol == ALL or PROTOCOLS[protocol].takes != "features":
        able = ", ".join(name for name, row in PROTOCOLS.items() if row.takes == "features")
        raise ConfigError(f"predictions are written for {able}, one protocol at a time, received {protocol}.")
    if file.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"predictions are written to a .csv or .parquet file, received {path}.")
    if file.is_dir() or not file.absolute().parent.is_dir():
        what = "it is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}"
        raise ConfigError(f"cannot write predictions to {path}: {what}.")
    if file.suffix.lower() == ".parquet":
        require_pyarrow(f"predictions={path}")
    return file


@dataclass
class Predictions:
    """One row per encoder and test image: `model`, `path`, `label`, then `prediction` and `score`.

    A protocol with several answers has several pairs of the last two: `prediction@20`, `score@20` for k = 20.
    """

    path: Path
    _columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, result: Result, tested: Labelled, labels: Labels) -> None:
        """The predictions of one encoder on its test images, whose classes are `labels`."""
        names = np.array([*tested.classes, ""], dtype=object)  # the last is -1: no class
        columns: dict[str, Any] = {
            "model": [str(result.model.get("branch") or result.model.get("name") or "")] * len(labels),
            "path": [place.encode("utf-8", "backslashreplace").decode() for place in tested.places()],
            "label": names[labels],
        }
        for end, found in result.predicted.items():
            columns |= {f"prediction{end}": names[found.classes], f"score{end}": found.scores}
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend(np.asarray(values).tolist())

    def write(self) -> None:
        """Write the file, whole or not at all."""
        write: Callable[[Path], None] = self._csv if self.path.suffix.lower() == ".csv" else self._parquet
        try:
            with replacing(self.path) as beside:
                write(beside)
        except OSError as error:
            raise DataError(f"cannot write predictions to {self.path}: {error.strerror or error}.") from error

    def _csv(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows(zip(*self._columns.values(), strict=True))

    def _parquet(self, path: Path) -> None:
        pa, pq = require_pyarrow(f"predictions={self.path}")
        pq.write_table(pa.table(self._columns), path)
