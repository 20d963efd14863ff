"""`carp settings`: every setting with its default, accepted values and meaning."""

import json
from typing import Any

from carp.config import AUTOMATIC, GROUPS, Config, form_of
from carp.config.recipe import list_recipes, read_recipe
from carp.errors import ConfigError, nearest

_KINDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "number": "number",
    "object": "{name: value}",
    "string": "text",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def settings(key: str | None = None) -> str:
    """Describe one setting, or all settings in their groups, as text."""
    if key is not None and key not in Config.model_fields:
        raise ConfigError(f"there is no setting '{key}'.{nearest(key, Config.model_fields)} `carp settings` lists all.")
    properties = Config.model_json_schema()["properties"]
    if key is not None:
        return "\n".join([*_describe(key, properties[key]), *_in_recipes(key)])
    lines = [
        "Defaults. A recipe changes some of them (`carp recipes NAME`); key=value on the command line overrides both."
    ]
    for name, schema in properties.items():
        if name in GROUPS:
            lines += ["", GROUPS[name]]
        lines += [f"  {line}" for line in _describe(name, schema)]
    return "\n".join(lines)


def _describe(key: str, schema: dict[str, Any]) -> list[str]:
    kinds = ["auto"] * (key in AUTOMATIC) + [_kind(key, part) for part in schema.get("anyOf", [schema])]
    return [f"{key}={_written(schema['default'])}   ({' or '.join(kinds)})", f"    {schema['description']}"]


def _in_recipes(key: str) -> list[str]:
    """Say which recipes set it; `folder` is used if no recipe is named."""
    names = dict[str, list[str]]()
    for name in list_recipes():
        recipe = read_recipe(name)
        if key in recipe:
            names.setdefault(_written(recipe[key]), []).append(name)
    return [f"    {value} in {', '.join(of)}" for value, of in names.items()]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _kind(key: str, schema: dict[str, Any]) -> str:
    """Describe the accepted values."""
    if key == "source":
        from carp.images.source import kinds_by_word  # imported here, because only this setting needs it

        return " or ".join(["auto", *sorted(kinds_by_word())])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if schema["type"] == "array" and "items" in schema:
        return f"[{_kind(key, schema['items'])}, ...]"
    if "prefixItems" in schema:  # a tuple of numbers with the same bounds
        return f"{form_of(key)}, each {_bounds(schema['prefixItems'][0])}"
    return f"{_KINDS[schema['type']]} {_bounds(schema)}".rstrip()


def _bounds(schema: dict[str, Any]) -> str:
    found = {sign: schema[name] for name, sign in _BOUNDS.items() if name in schema}
    whole = {sign: int(value) if value == int(value) else value for sign, value in found.items()}  # 1, not 1.0
    return " and ".join(f"{sign} {value}" for sign, value in whole.items())
