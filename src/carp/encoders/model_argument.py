"""Interprets the argument MODEL of a command: a run folder, a weights file, or `METHOD:FILE`."""

from pathlib import Path

from carp.encoders.foreign import BY_NAME
from carp.errors import CheckpointError, nearest


def is_weights(model: str | Path) -> bool:
    """Return whether a model is a weights file, `FILE` or `METHOD:FILE`, rather than a run folder."""
    path = Path(model)
    return split_weights(model)[0] is not None or (path.exists() and not path.is_dir())


def split_weights(model: str | Path) -> tuple[str | None, Path]:
    """Split `METHOD:FILE` or `FILE` into method (None if not named) and file."""
    method, sign, file = str(model).partition(":")
    if not sign or Path(model).exists():
        return None, Path(model)
    hint = nearest(method, BY_NAME)
    if method not in BY_NAME and (hint or Path(file).expanduser().is_file()):
        raise CheckpointError(f"'{method}' is not a format of weights.{hint} `carp weights` lists all formats.")
    return (method, Path(file)) if method in BY_NAME else (None, Path(model))
