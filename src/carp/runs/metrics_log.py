"""`metrics.jsonl`: one JSON object per line, the same bytes for the same run however often it was interrupted.

Nothing in it depends on the clock. A checkpoint records the length and the checksum of the file; a resumed run
truncates the file to that length and writes the same lines again. Lines that were lost or changed are reported.
"""

import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carp.errors import CarpWarning, CheckpointError
from carp.runs.loggers import Loggers

Warn = Callable[[str], None]


def _as_python_warning(message: str) -> None:
    warnings.warn(message, CarpWarning, stacklevel=3)


class RunLog:
    """Appends metrics to the file and sends them to the trackers of the run."""

    def __init__(
        self,
        folder: Path,
        *,
        length: int = 0,
        checksum: int | None = None,
        loggers: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        warn: Warn = _as_python_warning,
    ) -> None:
        """`length` and `checksum` are those in the checkpoint; checkpoints of older versions have no checksum.

        `loggers` names the trackers, which also record the `settings`.
        """
        self.path = folder / "metrics.jsonl"
        with _explained(self.path):
            self._cut(length, checksum, warn)
            self._file = self.path.open("a", buffering=1)
        self._loggers = Loggers(folder, loggers, settings or {}, warn)

    def _cut(self, length: int, checksum: int | None, warn: Warn) -> None:
        """Truncate the file to `length`, where a line must end; warn if it is shorter or was changed."""
        try:
            content = self.path.read_bytes()[:length]
        except FileNotFoundError:
            content = b""
        kept = content[: content.rfind(b"\n") + 1]
        if len(kept) < length:
            what = "was cut or changed" if content else "is missing or empty"
            after = f"after step {steps[-1]} " if (steps := _steps(kept)) else ""
            warn(
                f"{self.path} {what}: it has {len(kept):,} of the {length:,} bytes that the checkpoint recorded. The "
                f"lines {after}up to the checkpoint are lost and missing from plots.png; later lines are appended."
            )
        self.checksum = zlib.crc32(kept)
        if len(kept) == length and checksum is not None and self.checksum != checksum:
            warn(
                f"{self.path} has changed since the checkpoint: its lines up to there, and plots.png, may be wrong. "
                "The weights are not affected."
            )
        self.path.touch()
        os.truncate(self.path, len(kept))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line."""
        line = json.dumps({"step": step, **values}) + "\n"
        with _explained(self.path):
            self._file.write(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)
        self._loggers.add(step, values)

    def sync(self) -> int:
        """Flush all lines to disk and return the length of the file in bytes."""
        with _explained(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self.path.stat().st_size

    def close(self) -> None:
        """Close the file and finish the records of the trackers."""
        self._file.close()
        self._loggers.close()


class SilentLog(RunLog):
    """Writes nothing, for all processes of a run but the first."""

    def __init__(self, folder: Path, **_: Any) -> None:
        self.path = folder / "metrics.jsonl"
        self.checksum = 0

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Drop the line."""

    def sync(self) -> int:
        """Return 0: there is no file."""
        return 0

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. The checkpoints are intact; free some space, then rerun the same "
            "command."
        ) from error


def read_metrics(path: Path, warn: Warn = _as_python_warning) -> list[dict[str, Any]]:
    """Read a metrics file; damaged lines, such as the last line of a killed run, are skipped with a warning."""
    found, damaged = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if (read := _read_line(line)) is None:
            damaged.append(number)
        else:
            found.append(read)
    if damaged:
        warn(
            f"{path}: line {damaged[0]} is not a JSON object with a step and is skipped"
            f"{f', and {len(damaged) - 1} more' if len(damaged) > 1 else ''}."
        )
    return found


def _read_line(line: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) and isinstance(read.get("step"), int) else None


def _steps(lines: bytes) -> list[int]:
    return [read["step"] for line in lines.splitlines() if (read := _read_line(line))]
