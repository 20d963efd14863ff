"""Experiment trackers that receive the metrics of a run besides `metrics.jsonl`.

A tracker is a class with `add` and `close`; another one is another class and a row in `_LOGGERS`. A tracker never ends
a run: if it fails, it is dropped with a warning. A resumed run continues the record of the tracker, whose name is kept
in `loggers.json`.
"""

import json
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from carp.errors import MissingExtraError
from carp.files.atomic import write_atomic

PROJECT = "carp"  # unless the tracker's own environment variable names another
_FILE = "loggers.json"
Warn = Callable[[str], None]


class Logger(ABC):
    """A connection to one tracker."""

    name: str
    extra: str

    @abstractmethod
    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:
        """Open the tracker for a run folder; `record` is what `record` was when the run was interrupted."""

    @property
    def record(self) -> str | None:
        """The tracker's own name for this run, if it needs one to continue."""
        return None

    @abstractmethod
    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of one step."""

    @abstractmethod
    def close(self) -> None:
        """Finish the record."""


class TensorBoard(Logger):
    """Event files in the run folder."""

    name, extra = "tensorboard", "log"

    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional

        self._writer = SummaryWriter(str(folder / self.name))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases(Logger):
    """A run of Weights & Biases; its environment variables choose project, entity and offline mode."""

    name, extra = "wandb", "wandb"

    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:
        import wandb  # noqa: PLC0415 - optional

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(folder),
            name=folder.name,
            id=record or secrets.token_hex(8),
            resume="allow",
            config=dict(settings),
            settings=wandb.Settings(silent=True),
        )

    @property
    def record(self) -> str | None:
        """The id of the run."""
        return str(self._run.id)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MLflow(Logger):
    """A run of MLflow, in the store of MLFLOW_TRACKING_URI or, without it, in `mlruns` beside the run folder."""

    name, extra = "mlflow", "mlflow"

    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow asks for a word of consent
            place = (folder.resolve().parent / "mlruns").as_uri()
        from mlflow.entities import Metric, Param  # noqa: PLC0415 - optional
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        self._metric, self._client = Metric, MlflowClient(place)
        if record is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            record = self._client.create_run(experiment, run_name=folder.name).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in settings.items()]
            self._client.log_batch(record, params=params[:100])
        self._record = str(record)

    @property
    def record(self) -> str | None:
        """The id of the run."""
        return self._record

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step; the clock of a metric is the step, so that a resumed run repeats itself."""
        self._client.log_batch(self._record, metrics=[self._metric(n, v, step, step) for n, v in values.items()])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._record)


class Trackio(Logger):
    """A run of trackio, in its local database."""

    name, extra = "trackio", "trackio"

    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:
        import trackio  # noqa: PLC0415 - optional

        self._record = record or f"{folder.name}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=self._record,
            resume="allow",
            config={key: str(value) for key, value in settings.items()},
            embed=False,
        )

    @property
    def record(self) -> str | None:
        """The name of the run."""
        return self._record

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


_LOGGERS: Mapping[str, type[Logger]] = {kind.name: kind for kind in (TensorBoard, WeightsAndBiases, MLflow, Trackio)}


class Loggers:
    """All trackers of a run; one that fails is dropped."""

    def __init__(self, folder: Path, names: Sequence[str], settings: Mapping[str, Any], warn: Warn) -> None:
        """Open them; a package that is missing is an error, since the user asked for it."""
        self._warn, self._open = warn, dict[str, Logger]()
        path = folder / _FILE
        records = _read_records(path)
        before = dict(records)
        for name in dict.fromkeys(names):
            kind = _LOGGERS[name]
            try:
                with redirect_stdout(sys.stderr):  # standard output is for results
                    self._open[name] = kind(folder, records.get(name), settings)
            except ImportError:
                remedy = f"Run `pip install 'carp-ssl[{kind.extra}]'`."
                raise MissingExtraError(f"the logger {name} needs a package that is not installed. {remedy}") from None
            except Exception as error:  # a tracker may raise anything, and must not keep a run from starting
                self._drop(name, error)
                continue
            if (record := self._open[name].record) is not None:
                records[name] = record
        if records != before:
            write_atomic(path, json.dumps(records, indent=2) + "\n")

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers among the values to all trackers."""
        numbers = {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "epoch"
        }
        for name, logger in list(self._open.items()):
            try:
                logger.add(step, numbers)
            except Exception as error:  # see above
                self._drop(name, error)

    def close(self) -> None:
        """Finish all records."""
        for name, logger in list(self._open.items()):
            try:
                with redirect_stdout(sys.stderr):
                    logger.close()
            except Exception as error:  # see above
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        reason = " ".join(str(error).split()) or type(error).__name__
        self._warn(f"{name} failed and receives no further metrics of this run: {reason}. metrics.jsonl has them all.")


def _read_records(path: Path) -> dict[str, str]:
    """Return the trackers' own names for a run; without the file, or if it is damaged, they begin new ones."""
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(name): str(record) for name, record in read.items()} if isinstance(read, dict) else {}
