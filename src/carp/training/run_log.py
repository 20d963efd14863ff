"""`metrics.jsonl`: one JSON object a line, the same bytes for the same run however often it was interrupted.

Whatever depends on the clock stays out of it. A checkpoint remembers the length of the file; a continued run cuts
the file there and writes the same lines again.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carp.errors import CheckpointError, MissingExtraError


class RunLog:
    """Appends metrics to the file, and to TensorBoard if asked."""

    def __init__(self, folder: Path, *, length: int = 0, tensorboard: bool = False) -> None:
        self.path = folder / "metrics.jsonl"
        with _telling_why(self.path):
            self.path.touch()
            os.truncate(self.path, min(length, self.path.stat().st_size))
            self._file = self.path.open("a", buffering=1)
        self._board = _open_tensorboard(folder / "tensorboard") if tensorboard else None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line."""
        with _telling_why(self.path):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float) and name != "epoch":
                    self._board.add_scalar(name, value, step)

    def sync(self) -> int:
        """Bring all lines to the disk and return the file's length in bytes."""
        with _telling_why(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self.path.stat().st_size

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


class SilentLog(RunLog):
    """Writes nothing: of several processes that share a run only one does."""

    def __init__(self, folder: Path, **_: Any) -> None:
        self.path = folder / "metrics.jsonl"

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Nothing."""

    def sync(self) -> int:
        """Nothing."""
        return 0

    def close(self) -> None:
        """Nothing."""


@contextmanager
def _telling_why(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. The checkpoints are intact; make room, then run the same "
            "command again."
        ) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _open_tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(
            "tensorboard: true needs TensorBoard, which is not installed. Run `pip install 'carp-ssl[log]'`."
        ) from None
    return SummaryWriter(str(folder))
