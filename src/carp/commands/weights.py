"""`carp weights`: the released weights of other methods, and what a weights file contains."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from carp.encoders.foreign import METHODS, ForeignWeights, Method, read_foreign
from carp.encoders.foreign.named_row import is_timm_folder
from carp.encoders.model_argument import split_weights
from carp.encoders.read_export import CarpExport, read_own
from carp.report.weights_list import num_parameters, published_numbers


@dataclass(frozen=True)
class ListedWeights:
    """Released weights that CARP reads."""

    method: Method
    published: dict[str, float]
    """The numbers that the paper published, in percent."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        method, layouts = self.method, self.method.layouts
        fields = ("name", "title", "source", "read_in", "paper", "epochs", "mean", "std", "size", "verified", "note")
        return {
            **{key: getattr(method, key) for key in fields},
            "entries": [layout.path for layout in layouts],
            "prefixes": [layout.prefix for layout in layouts],
            "families": [layout.family for layout in layouts],
            "heads": method.heads,
            "published": self.published,
        }


@dataclass(frozen=True)
class WeightsFile:
    """A weights file that was recognised."""

    found: ForeignWeights | CarpExport

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        found = self.found
        if isinstance(found, CarpExport):
            return {"path": str(found.path), "method": None, **found.about.model_dump()}
        return {
            "path": str(found.path),
            "method": found.method.name,
            "also": list(found.also),
            "architecture": str(found.architecture),
            "tensors": len(found.tensors),
            "parameters": num_parameters(found),
            "leftovers": list(found.leftovers),
            "unexpected": list(found.unexpected),
            "beside": list(found.beside),
            "uncounted": found.uncounted,
            "size": found.size,
            "sha256": found.sha256,
        }


@overload
def weights(file: None = None) -> list[ListedWeights]: ...
@overload
def weights(file: str | Path) -> WeightsFile: ...


def weights(file: str | Path | None = None) -> list[ListedWeights] | WeightsFile:
    """List the released weights of other methods that CARP reads, or identify a weights file.

    Nothing in a file is ever executed.

    Args:
        file: A checkpoint, FILE or METHOD:FILE, or another form of weights (docs/weights.md); None lists all methods.

    Returns:
        One entry per method, or a description of the file: its method, its network, and the tensors that are not used.
    """
    if file is None:
        return [ListedWeights(method, published_numbers(method)) for method in METHODS]
    return WeightsFile(_read(str(file)))


def _read(file: str) -> ForeignWeights | CarpExport:
    """Read weights in any of their forms; a colon may belong to the path."""
    name, colon, path = file.partition(":")
    method, place = split_weights(file)
    if colon and method is None and not Path(file).exists() and "/" not in name and not place.exists():
        return read_foreign(path, name)  # the error says what is wrong with the name
    place = place.expanduser()
    own = None if method or is_timm_folder(place) else read_own(place)
    if own is not None and own.method is None:
        return own
    return read_foreign(place, method or (own.method if own else None))
