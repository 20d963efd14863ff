"""`RUN@25`: a run as it was at the end of an epoch, wherever a command or function takes a run. Imports no torch."""

import re
from pathlib import Path
from typing import overload

from carp.errors import CheckpointError, ConfigError, received

_AT = re.compile(r"(.+)@([^@/]+)", re.DOTALL)


def split_epoch(model: str | Path) -> tuple[Path, int | None]:
    """Split `RUN@25` into the run folder and the epoch; a path that exists has no epoch, whatever its name."""
    path = Path(model)
    match = _AT.fullmatch(str(path))
    if match is None or path.exists() or not Path(match[1]).is_dir():
        return path, None
    if not re.fullmatch(r"\d{1,9}", match[2]):
        raise ConfigError(
            f"the epoch of a run is written RUN@25, with a whole number, received {received(str(model))}."
        )
    return Path(match[1]), int(match[2])


@overload
def at_epoch(model: str | Path, epoch: int | None) -> str | Path: ...
@overload
def at_epoch(model: str | Path | None, epoch: int | None) -> str | Path | None: ...


def at_epoch(model: str | Path | None, epoch: int | None) -> str | Path | None:
    """Return `RUN@EPOCH` for a run and the option --epoch; without an epoch, the model as it was given."""
    if epoch is None:
        return model
    if model is None:
        raise ConfigError(f"--epoch {received(epoch)} needs a run, but no model was given. Give a run folder.")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ConfigError(f"epoch must be a whole number of at least 0, received {received(epoch)}.")
    folder, given = split_epoch(model)
    if given not in (None, epoch):
        raise ConfigError(f"two different epochs were given: {model} and --epoch {epoch}. Leave one of them out.")
    if not (folder / "config.yaml").is_file():
        what = "is not a run folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"--epoch needs a run folder, but {folder} {what}. Give a run, or leave out --epoch.")
    return f"{folder}@{epoch}"
