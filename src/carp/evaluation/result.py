"""The result of a protocol, and its file."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.evaluation.protocols import protocol_of_result
from carp.files.atomic import write_atomic
from carp.files.regular import read_text

SCHEMA = 1
_WRITTEN_BY = "Give files that `carp eval` wrote (results/*.json)"


@dataclass(frozen=True)
class Predicted:
    """The predicted class of every test image [N] (-1 is none), and the score of the prediction [N]."""

    classes: NDArray[np.int64]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """Named values (shares between 0 and 1) and how they were obtained.

    `spread` holds, under the same names, the standard deviation of those values that are means over several runs;
    `details` holds what the values were computed from: the single runs, the classifiers of a grid, the counts of empty
    clusters.
    """

    protocol: str = ""
    """Its name; the runner fills it in."""
    values: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    """`name`, and `train` and `test` as they were given."""
    model: dict[str, Any] = field(default_factory=dict)
    """`name`, `hash` of the weights, `branch`; also `epochs`, and `epoch` if one was given (`RUN@25`)."""
    versions: dict[str, str] = field(default_factory=dict)
    created: str = ""
    """Date and time in UTC; `write` fills it in."""
    spread: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    """The arguments of the evaluation: `data`, `test`, `settings` and `options`; the runner fills it in."""
    predicted: dict[str, Predicted] = field(default_factory=dict, repr=False, compare=False)
    """Predictions, if requested, by the end of the names of their values: `@20` for `top1@20`. Result files do not
    contain them."""

    @property
    def model_name(self) -> str:
        """The branch of a run, with its epoch if one was given, or the name of the weights."""
        return str(self.model.get("branch") or self.model.get("name") or "") + self.at_epoch

    @property
    def at_epoch(self) -> str:
        """`@25` if the run was evaluated at the end of epoch 25; otherwise nothing."""
        epoch = self.model.get("epoch")
        return f"@{epoch}" if isinstance(epoch, int) else ""

    def to_json(self) -> str:
        """Return the text of a result file."""
        content = asdict(replace(self, predicted={}))
        del content["predicted"]
        return json.dumps({"schema": SCHEMA, **content}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str) -> "Result":
        """Read the text of a result file; `place` names it in error messages.

        Keys of later versions are ignored, and former names of protocols are replaced.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON ({error})"
            raise DataError(f"{place} is not a result file: {reason}. {_WRITTEN_BY}.") from None
        if not isinstance(read, dict):
            raise DataError(f"{place} is not a result file: it contains {_kind(read)}, not an object. {_WRITTEN_BY}.")
        schema = read.get("schema", SCHEMA)  # the first result files had none
        if schema != SCHEMA:
            raise DataError(
                f"{place} has schema {schema!r}, but this version of CARP reads schema {SCHEMA}. Update CARP."
            )
        _check(read, place)
        known = {key: read[key] for key in cls.__dataclass_fields__ if key in read and key != "predicted"}
        protocol = protocol_of_result(read["protocol"])
        return cls(**known | ({} if protocol is None else {"protocol": protocol.name}))

    def write(self, path: Path) -> None:
        """Write as JSON, dated."""
        path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        write_atomic(path, replace(self, created=self.created or now).to_json())


def only(predicted: Predicted | None) -> dict[str, Predicted]:
    """Return the predictions of a protocol that makes one per image."""
    return {} if predicted is None else {"": predicted}


def read_result(path: Path) -> Result:
    """Read a result file."""
    try:
        return Result.from_json(read_text(path), str(path))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a result file: it is not text. {_WRITTEN_BY}.") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from None


def _check(read: dict[str, Any], place: str) -> None:
    """Check that required keys exist, and the type of every key."""
    wanted = {"protocol": str, "created": str} | dict.fromkeys(
        ("values", "settings", "data", "model", "versions", "spread", "details", "request"), dict
    )
    for key in ("protocol", "values"):
        if key not in read:
            raise DataError(f"{place} is not a result file: it has no '{key}'. {_WRITTEN_BY}.")
    for key, kind in wanted.items():
        if key in read and not isinstance(read[key], kind):
            name = "text" if kind is str else "an object"
            raise DataError(f"{place} is not a result file: '{key}' must be {name}, received {_kind(read[key])}.")
    for name, value in [*read["values"].items(), *read.get("spread", {}).items()]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{place}: the value '{name}' must be a finite number, received {json.dumps(value)[:80]}.")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def mean_and_deviation(runs: list[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean and standard deviation (divided by the number of runs) of every name; one run has no deviation."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return (
        {name: float(np.mean(column)) for name, column in columns.items()},
        {name: float(np.std(column)) for name, column in columns.items() if len(runs) > 1},
    )
