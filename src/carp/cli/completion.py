"""What the shell suggests after Tab, besides commands, options and files. Nothing here imports torch."""

from collections.abc import Callable, Iterable
from typing import Any

import typer

FORMATS_OF_EXPORT = ("torchvision", "timm", "safetensors", "onnx", "detectron2")
Suggest = Callable[[str], list[str]]


def one_of(*values: str) -> Suggest:
    """Suggest these values."""
    return lambda incomplete: _matching(values, incomplete)


def recipes(incomplete: str) -> list[str]:
    """Names of recipes."""
    from carp.config.recipe import list_recipes

    return _matching(list_recipes(), incomplete)


def protocols(incomplete: str) -> list[str]:
    """Names of protocols."""
    from carp.commands.protocols import NAMES

    return _matching(NAMES, incomplete)


def keys(incomplete: str) -> list[str]:
    """Names of settings, for `carp settings`."""
    from carp.config import Config

    return _matching(Config.model_fields, incomplete)


def settings(incomplete: str) -> list[str]:
    """Settings of training with their defaults: `epochs=100`."""
    from carp.config import Config

    fields = Config.model_fields.items()
    return _matching((_written(key, field.default) for key, field in fields), incomplete)


def protocol_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Settings of the protocol of the command, with their defaults: `k=20`."""
    from carp.commands.protocols import ALL, NAMES, find_protocol

    name = context.params.get("protocol")
    if name not in NAMES or name == ALL:
        return []
    return _matching((s.written.split()[0] for s in find_protocol(name).settings().values()), incomplete)


def _written(key: str, value: Any) -> str:
    plain = isinstance(value, bool | int | float | str)
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}" if plain else f"{key}="


def _matching(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in values if value.startswith(incomplete)]
