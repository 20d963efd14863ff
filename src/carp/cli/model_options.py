"""Options of the command line from a settings model: one option per field, with its description as help.

    @app.command("embed")
    @with_model_options
    def _embed(model: ..., features: FeatureOptions) -> None: ...

gives `carp embed` the options --layer, --size, … and calls the function with a checked `FeatureOptions`.
"""

import inspect
import types
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from carp.cli.completion import one_of


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a settings model by one option per field, after the others."""
    signature = inspect.signature(command, eval_str=True)
    models = {name: p.annotation for name, p in signature.parameters.items() if _is_model(p.annotation)}
    others = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    parameters = [parameter for parameter in others if parameter.name not in models]
    parameters += [option_of(key, field) for model in models.values() for key, field in model.model_fields.items()]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, model in models.items():
            given[name] = model(**{key: given.pop(key) for key in model.model_fields})
        command(**given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def option_of(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return one field as a parameter that Typer turns into an option; the model checks its value."""
    kind, options = _kind(field.annotation), dict[str, Any]()
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    suggested: Any = extra.get("suggest") or _choices(field.annotation)
    if suggested:
        options["autocompletion"] = one_of(*suggested)
    if kind in (int, float):
        options["min"] = next((item.ge for item in field.metadata if hasattr(item, "ge")), None)
    names = [f"--{key.replace('_', '-')}"] if kind is bool else []  # without --no-…
    option = typer.Option(*names, help=field.description, **options)
    annotation: Any = Annotated[kind | None if field.default is None else kind, option]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _choices(annotation: Any) -> tuple[str, ...]:
    (kind, *_) = _without_none(annotation)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _kind(annotation: Any) -> Any:
    """Return the type that Typer converts the text of an option to."""
    kinds = _without_none(annotation)
    if get_origin(kinds[0]) is Literal:
        return str
    return Path if Path in kinds else kinds[0]


def _without_none(annotation: Any) -> list[Any]:
    """Return the types that a field accepts besides None."""
    is_union = isinstance(annotation, types.UnionType) or get_origin(annotation) is Union
    return [kind for kind in get_args(annotation) if kind is not types.NoneType] if is_union else [annotation]
