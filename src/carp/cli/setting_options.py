"""One option per setting of a protocol: `--k 20` beside `k=20`. The settings model reads the text of both."""

import inspect
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

PANEL = "Settings, also written key=value"


def setting_option(key: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as a parameter that Typer turns into an option; None if it is not given."""
    name = key.replace("_", "-")
    kind: Any = _kind(field.annotation)
    names = [f"--{name}/--no-{name}"] if kind is bool else [f"--{name}"]
    default = "" if field.default is None else f" \\[default: {written(field.default)}]"
    option = typer.Option(
        *names,
        help=f"{field.description}{default}",
        metavar=None if kind is bool else _metavar(field.annotation),
        show_default=False,
        rich_help_panel=PANEL,
    )
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def given_settings(fields: Mapping[str, FieldInfo], options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given as options; a repeated option has the values of all."""
    given = {key: options[key] for key in fields if options[key] not in (None, [])}
    return {key: ",".join(value) if isinstance(value, list) else value for key, value in given.items()}


def written(value: Any) -> str:
    """A default as it is written after `key=`."""
    if isinstance(value, tuple):
        return ",".join(written(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(annotation: Any) -> Any:
    """What Typer reads: a flag, text that may be repeated, or text."""
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
