"""The parameters of `carp eval PROTOCOL`: the options that the protocol uses, and one option per setting.

A setting is written `--k 20` or `k=20`; the settings model reads the text of both.
"""

import inspect
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from carp.cli import completion, options
from carp.cli.model_options import option_of
from carp.evaluation.protocol import OPTIONS, AnyProtocol
from carp.features.feature_options import FeatureOptions

_DATA = {
    "features": "Labelled images to train on (docs/data.md; dataset:NAME), or the folder of their features.",
    "images": "Images to search, or a folder of altered copies (docs/protocols.md).",
    "boxes": "Folder that contains VOCdevkit.",
}
_WITHOUT_TEST = {
    "leave one out": "Default: leave-one-out on the images of --data.",
    "the same images": "Default: the images of --data.",
    "hold out": "Default: hold out a fifth of each class of --data.",
}
_Baselines = Annotated[bool, typer.Option("--baselines", help="Also evaluate raw pixels and the untrained encoder.")]
_Weights = Annotated[
    str | None, typer.Option(help="Weights to evaluate, FILE or METHOD:FILE; the same as giving them as MODEL.")
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for results and features. Default: the run folder; for weights, a folder named after them."
    ),
]
_Predictions = Annotated[
    Path | None,
    typer.Option(help="Write one row per test image to this .csv or .parquet file; also predictions=FILE."),
]


def parameters_of(protocols: Sequence[type[AnyProtocol]]) -> list[inspect.Parameter]:
    """Return the parameters of a command that runs these protocols; settings are those of a single protocol."""
    first, several = protocols[0], len(protocols) > 1
    settings = {} if several else first.settings_type.model_fields
    words = Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings, e.g. seed=1.",
            autocompletion=completion.settings_of(settings),
            hidden=several,
        ),
    ]
    default = "" if first.needs == "boxes" else " Default: lite0."
    if first.needs == "features":
        default += " Not needed if --data and --test are folders written by `carp embed`."
    model = Annotated[
        str | None,
        typer.Argument(help=f"Run folder, or weights: FILE, METHOD:FILE or a name (docs/weights.md).{default}"),
    ]
    data = Annotated[str, typer.Option("--data", "--database", help=_DATA[first.needs])]
    found: dict[str, tuple[Any, Any]] = {"model": (model, None), "words": (words, None), "data": (data, "")}
    if first.needs == "features":
        without = "Default: depends on the protocol." if several else _WITHOUT_TEST[first.without_test]
        found["test"] = Annotated[str | None, typer.Option(help=f"Labelled images to test on. {without}")], None
    found |= {"branch": (options.Branches, None), "epoch": (options.Epochs, None)}
    if first.needs != "boxes":
        found["baselines"] = _Baselines, False
    found |= {"weights": (_Weights, None), "out": (_Out, None)}
    if first.predicts and not several:
        found["predictions"] = _Predictions, None
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(key, kind, annotation=note, default=value) for key, (note, value) in found.items()]
    extraction = [option_of(key, FeatureOptions.model_fields[key]) for key in OPTIONS[first.needs]]
    return [*own, *extraction, *(_setting_option(key, field) for key, field in settings.items())]


def parse_settings(
    context: typer.Context, given: dict[str, Any], fields: Mapping[str, FieldInfo]
) -> tuple[str | None, dict[str, Any]]:
    """Return the model and the settings given as options or key=value words; the settings model checks them.

    If no model is given, the first setting is parsed in its place. `predictions=FILE` is an option.
    """
    model, words = given["model"], list(given["words"] or ())
    if model is not None and ("=" in model or model.startswith("-")):
        model, words = None, [model, *words]
    if "predictions" in given:
        for word in [word for word in words if word.startswith("predictions=")]:
            given["predictions"] = Path(word.partition("=")[2])
            words.remove(word)
    chosen = {key: given[key] for key in fields if given[key] not in (None, [])}
    chosen = {key: ",".join(value) if isinstance(value, list) else value for key, value in chosen.items()}
    return given["weights"] or model, chosen | options.parse_protocol(context, words, fields)


def _setting_option(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return a setting as a parameter that Typer turns into an option; None if it is not given."""
    name = key.replace("_", "-")
    kind: Any = _kind(field.annotation)
    names = [f"--{name}/--no-{name}"] if kind is bool else [f"--{name}"]
    default = "" if field.default is None else f" \\[default: {written(field.default)}]"
    option = typer.Option(
        *names,
        help=f"{field.description}{default}",
        metavar=None if kind is bool else _metavar(field.annotation),
        show_default=False,
        rich_help_panel="Settings, also written key=value",
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def written(value: Any) -> str:
    """Return a default as it is written after `key=`."""
    if isinstance(value, tuple):
        return ",".join(written(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(annotation: Any) -> Any:
    """Return the type for Typer: a flag, text that may be repeated, or text."""
    if annotation is bool or bool in get_args(annotation):
        return bool
    return list[str] if get_origin(annotation) is tuple else str


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return f"{_metavar(get_args(annotation)[0])},…"
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is not None:
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        return "PATH" if str in parts else "|".join(_metavar(part) for part in parts)
    return {int: "INTEGER", float: "NUMBER"}.get(annotation, "TEXT")
