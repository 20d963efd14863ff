"""`carp weights`: the released weights of other methods, and what a file of weights is."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from carp.encoders.foreign import BY_NAME, METHODS, ForeignWeights, Method, read_foreign
from carp.encoders.foreign.architecture import Traits
from carp.encoders.read_export import CarpExport, build_own, read_own
from carp.report.tables.columns import Column
from carp.report.tables.join import Row
from carp.report.tables.paper import published
from carp.report.tables.screen import plain_text

_PUBLISHED = {
    "linear": Column("linear", "imagenet", "top1"),
    "k-NN": Column("knn", "imagenet", "top1_k20"),
    "k-NN, 8 sets": Column("knn", "average", "top1_k20"),
}
_SHOWN = 6  # names of leftovers
_DOUBT = (
    "all counters of batch norm are 0: converted from another library, or never trained. If it is Keras' ResNet, its "
    "strides and eps differ: give resnet-v1:{path}"
)


def list_formats() -> str:
    """Every row as JSON, with its published numbers in percent."""
    return json.dumps([_as_json(method) for method in METHODS], indent=1, ensure_ascii=False)


def describe_formats() -> str:
    """The table as text."""
    table = Table(title="Weights that CARP reads")
    table.add_column("name", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in ("epochs", *_PUBLISHED):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for method in METHODS:
        numbers = _published(method)
        cells = [f"{numbers[name]:.1f}" if name in numbers else "" for name in _PUBLISHED]
        title = method.title if method.verified else f"{method.title} (layout not verified)"
        table.add_row(method.name, title, str(method.epochs or ""), *cells, method.source)
    lines = plain_text(table).splitlines()
    lines += ["Numbers: the paper's, top-1 in percent; linear and k-NN (k = 20) on ImageNet, k-NN as a mean of 8 sets."]
    lines += [f"{method.name}: {method.note}." for method in METHODS if method.note]
    return "\n".join(
        [
            *lines,
            "`carp weights FILE` says what a file is; `carp weights NAME:FILE` reads it as one of these.",
            "The order is no ranking. Where several names fit a file and their features differ, you "
            "must give NAME:FILE; where their features are the same, the name only labels the results.",
        ]
    )


def recognise_file(file: str) -> str:
    """What a file is, as JSON."""
    found = _read(file)
    if isinstance(found, CarpExport):
        about = found.about.model_dump()
        return json.dumps({"path": str(found.path), "method": None, **about}, indent=1, ensure_ascii=False)
    known = {
        "method": found.method.name,
        "also": list(found.also),
        "architecture": str(found.architecture),
        "tensors": len(found.tensors),
        "parameters": _parameters(found),
        "leftovers": list(found.leftovers),
        "unexpected": list(found.unexpected),
        "beside": list(found.beside),
        "uncounted": found.uncounted,
        "size": found.size,
        "sha256": found.sha256,
    }
    return json.dumps({"path": str(found.path), **known}, indent=1, ensure_ascii=False)


def describe_file(file: str) -> str:
    """What a file is, what will be loaded and what is left over, as text."""
    found = _read(file)
    if isinstance(found, CarpExport):
        return _describe_own(found)
    method = found.method
    lines = [
        f"file        {found.path}   sha256 {found.sha256[:16]}…",
        f"format      {method.name}: {method.title}",
        f"encoder     {found.architecture}, {_parameters(found):,} parameters in {len(found.tensors)} tensors",
        f"images      {found.size} pixels, {_normalisation(method)}",
        f"left over   {_few(found.leftovers)}",
    ]
    lines += [f"unexpected  {_few(found.unexpected)}"] if found.unexpected else []
    lines += [f"beside      {_few(found.beside)}"] if found.beside else []
    lines += [f"note        {method.note}"] if method.note else []
    lines += [f"doubt       {_DOUBT.format(path=found.path)}"] if _may_be_converted(found) else []
    lines += [f"source      {method.source}"]
    lines += [f"choose      {_choice(found)}"] if found.also else []
    return "\n".join(lines)


def _may_be_converted(found: ForeignWeights) -> bool:
    return found.uncounted and found.method.traits == Traits() and found.method.mean == BY_NAME["resnet"].mean


def _choice(found: ForeignWeights) -> str:
    """What to do where several methods have files like this one."""
    others = ", ".join(found.also)
    return (
        f"{others}: files of the same layout, and the same features. Only the name in tables differs: give the one "
        f"that you downloaded, e.g. {found.also[0]}:{found.path}"
    )


def _read(file: str) -> ForeignWeights | CarpExport:
    """`NAME:FILE`, or a file alone; a colon may belong to the path."""
    name, colon, path = file.partition(":")
    if colon and not Path(file).exists() and (name in BY_NAME or "/" not in name):
        return read_foreign(path, name)
    own = read_own(Path(file))
    if own is not None and own.method is None:
        return own
    return read_foreign(file, own.method if own else None)


def _describe_own(found: CarpExport) -> str:
    """An encoder of a run; it is built, so that what is printed is known to load."""
    about, origin = found.about, found.about.origin
    encoder = build_own(found)
    options = f" with {json.dumps(about.options)}" if about.options else ""
    parameters, tensors = sum(p.numel() for p in encoder.parameters()), len(encoder.state_dict())
    return "\n".join(
        [
            f"file        {found.path}",
            f"format      carp export: {origin.get('branch', 'encoder')} of the run {origin.get('run', 'unknown')}",
            f"encoder     {about.architecture}{options}, {parameters:,} parameters in {tensors} tensors",
            f"images      {about.size} pixels, ImageNet's mean and deviation",
            f"trained on  {origin.get('images', 'unknown')}, {origin.get('epochs', 'unknown')} epochs",
        ]
    )


def _published(method: Method) -> dict[str, float]:
    """The paper's numbers for it, in percent."""
    _, cells = published()
    row = Row(method.paper, epochs=method.epochs, published=True, compared=method.paper != "Supervised")
    found = {name: cells.get((row, column)) for name, column in _PUBLISHED.items()}
    return {name: value.mean for name, value in found.items() if value is not None}


def _as_json(method: Method) -> dict[str, Any]:
    fields = ("name", "title", "source", "read_in", "paper", "epochs", "mean", "std", "size", "verified", "note")
    entries = [layout.path for layout in method.layouts]
    prefixes = [layout.prefix for layout in method.layouts]
    families = [layout.family for layout in method.layouts]
    known = {key: getattr(method, key) for key in fields} | {"entries": entries, "prefixes": prefixes}
    return {**known, "families": families, "heads": method.heads, "published": _published(method)}


def _parameters(found: ForeignWeights) -> int:
    return sum(tensor.numel() for name, tensor in found.tensors.items() if "running_" not in name)


def _normalisation(method: Method) -> str:
    if method.mean == (0, 0, 0):
        return "trained on pixels between 0 and 1 (translated from ImageNet's mean and deviation)"
    if method.mean == (0.5, 0.5, 0.5):
        return "trained with mean and deviation 0.5 (translated from ImageNet's)"
    return "ImageNet's mean and deviation"


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more
