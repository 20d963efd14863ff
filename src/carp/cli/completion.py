"""Shell completion of arguments other than commands, options and files. Nothing here imports torch."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

FORMATS_OF_EXPORT = ("torchvision", "timm", "hf", "safetensors", "onnx", "detectron2")
Suggest = Callable[[str], list[str]]


def one_of(*values: str) -> Suggest:
    """Suggest these values."""
    return lambda incomplete: _matching(values, incomplete)


def recipes(incomplete: str) -> list[str]:
    """Return the names of recipes."""
    from carp.config.recipe import list_recipes

    return _matching(list_recipes(), incomplete)


def ablations(incomplete: str) -> list[str]:
    """Return the names of ablations."""
    from carp.studies.ablations import ABLATIONS

    return _matching(ABLATIONS, incomplete)


def keys(incomplete: str) -> list[str]:
    """Return the names of settings, for `carp settings`."""
    from carp.config import Config

    return _matching(Config.model_fields, incomplete)


def settings(incomplete: str) -> list[str]:
    """Settings of training with their defaults: `epochs=100`."""
    from carp.config import Config

    return settings_of(Config.model_fields)(incomplete)


def settings_of(fields: "Mapping[str, FieldInfo]") -> Suggest:
    """Suggest the settings of a model with their defaults."""
    return lambda incomplete: _matching((_written(key, field.default) for key, field in fields.items()), incomplete)


def _written(key: str, value: Any) -> str:
    plain = isinstance(value, bool | int | float | str)
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}" if plain else f"{key}="


def _matching(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in values if value.startswith(incomplete)]
