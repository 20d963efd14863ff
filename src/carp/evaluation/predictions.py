"""The predictions for all test images as one file: CSV, or Parquet by its suffix."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from carp.errors import ConfigError, DataError
from carp.evaluation.labelled_features import LabelledFeatures
from carp.evaluation.protocol import AnyProtocol
from carp.evaluation.protocols import all_protocols
from carp.evaluation.result import Result
from carp.features.tabular import require_pyarrow, write_columns

_SUFFIXES = (".csv", ".parquet")


@dataclass
class Predictions:
    """One row per encoder and test image: `model`, `path`, `label`, then `prediction` and `score`.

    A protocol with several predictions per image has several pairs of the last two: `prediction@20` and `score@20` for
    k = 20.
    """

    path: Path
    _columns: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def checked(cls, path: str | Path, protocols: Sequence[AnyProtocol]) -> Self:
        """Predictions for a file; raise an error before anything is computed if they cannot be made or written."""
        file = Path(path)
        if len(protocols) > 1 or not protocols[0].predicts:
            able = ", ".join(protocol.name for protocol in all_protocols() if protocol.predicts)
            received = ", ".join(protocol.name for protocol in protocols)
            raise ConfigError(f"predictions are written for {able}, one protocol at a time, received {received}.")
        if file.suffix.lower() not in _SUFFIXES:
            raise ConfigError(f"predictions are written to a .csv or .parquet file, received {path}.")
        if file.is_dir() or not file.absolute().parent.is_dir():
            problem = "it is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}"
            raise ConfigError(f"cannot write predictions to {path}: {problem}. Give a file in an existing folder.")
        if file.suffix.lower() == ".parquet":
            require_pyarrow(f"predictions={path}")
        return cls(file)

    def add(self, result: Result, tested: LabelledFeatures) -> None:
        """Add the predictions of one encoder for its test images."""
        names = np.array([*tested.classes, ""], dtype=object)  # the last one is for -1, no class
        columns: dict[str, Any] = {
            "model": [result.model_name] * len(tested.labels),
            "path": tested.paths(),
            "label": names[tested.labels],
        }
        for end, found in result.predicted.items():
            columns |= {f"prediction{end}": names[found.classes], f"score{end}": found.scores}
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend(np.asarray(values).tolist())

    def write(self) -> None:
        """Write the file atomically."""
        try:
            write_columns(self.path, self._columns)
        except OSError as error:
            raise DataError(
                f"cannot write predictions to {self.path}: {error.strerror or error}. Give another file with "
                "--predictions."
            ) from error
