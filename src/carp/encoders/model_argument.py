"""Interprets the argument MODEL of a command: a run folder, or weights in one of their forms.

Weights are a file, `METHOD:FILE`, `timm:NAME:FILE`, a folder with a network of timm, `hf:OWNER/NAME`, or a packaged
name such as `lite0`; all of them come down to a format and a path.
"""

from pathlib import Path

from carp.encoders.foreign import BY_NAME
from carp.encoders.foreign.named_row import TIMM, is_timm_folder
from carp.encoders.hub import HUB, hub_folder
from carp.encoders.packaged import packaged
from carp.errors import CheckpointError, nearest


def is_weights(model: str | Path) -> bool:
    """Return whether a model is weights rather than a run folder."""
    method, path = split_weights(model)
    return method is not None or is_timm_folder(path) or (path.exists() and not path.is_dir())


def split_weights(model: str | Path) -> tuple[str | None, Path]:
    """Split a model into the format of its weights (None if not named) and the file or folder."""
    if row := packaged(model):
        return row.method, row.path()
    method, sign, file = str(model).partition(":")
    if not sign or Path(model).exists():
        return None, Path(model)
    if f"{method}:" == HUB:
        return None, hub_folder(file)
    if method == TIMM and not Path(file).expanduser().exists():
        name, sign, rest = file.partition(":")
        if sign:
            return f"{TIMM}:{name}", Path(rest)
    hint = nearest(method, BY_NAME)
    if method not in BY_NAME and (hint or Path(file).expanduser().is_file()):
        raise CheckpointError(f"'{method}' is not a format of weights.{hint} `carp weights` lists all formats.")
    return (method, Path(file)) if method in BY_NAME else (None, Path(model))


def name_of_weights(model: str | Path) -> str:
    """Return the name of weights in tables and of their output folder."""
    if row := packaged(model):
        return row.name
    text = str(model)
    if text.startswith(HUB) and not Path(text).exists():
        return text.rpartition("/")[2]
    path = split_weights(model)[1]
    return path.name if path.is_dir() else path.name.partition(".")[0]
