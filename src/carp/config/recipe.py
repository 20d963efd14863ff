"""Settings as text: recipes and other YAML files, and `key=value` arguments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from carp.config import Config, check_keys, recorded
from carp.errors import ConfigError, nearest, received
from carp.files.regular import read_text

_MOST_BYTES = 1 << 20  # limit for a configuration file
RECIPES = Path(__file__).parents[1] / "recipes"


def list_recipes() -> dict[str, str]:
    """Return the name and the first comment line of every recipe that ships with CARP."""
    return {path.stem: path.read_text().splitlines()[0].lstrip("# ") for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_path(recipe: str | Path) -> Path:
    """Return the file of a recipe, given by name or path."""
    path = Path(recipe)
    if path.suffix not in {".yaml", ".yml"}:
        path = RECIPES / f"{recipe}.yaml"
        if not path.is_file():
            names = list_recipes()
            raise ConfigError(
                f"there is no recipe '{recipe}'.{nearest(str(recipe), names)} "
                f"Recipes: {', '.join(names)}; or give the path of a .yaml file."
            )
    return path


def read_recipe(recipe: str | Path | None) -> dict[str, Any]:
    """Read a recipe by name or by path of a YAML file; None is the empty recipe (the defaults)."""
    return {} if recipe is None else read_yaml(recipe_path(recipe))


def read_settings(recipe: str | Path | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read a recipe, apply the overrides, and check every key and value by itself.

    Without a recipe, `adapt` is used with weights to start from, and `folder` without.
    """
    default = "folder" if overrides.get("start") is None else "adapt"
    values = {**read_recipe(recipe or default), **overrides}
    check_keys(values)
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping."""
    try:
        values = _load_yaml(read_text(path, _MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must contain `key: value` lines, received a {type(values).__name__}.")
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(
                f"{path} has the key {received(key)}. Keys must be names of settings (`carp settings` lists them)."
            )
    return values


def _load_yaml(text: str) -> Any:
    """Parse YAML; any mistake is a ValueError with the reason in one line."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        # Besides YAMLError: numbers of thousands of digits, dates that do not exist, tags without a value
        if "set_int_max_str_digits" in str(error):
            raise ValueError("it contains a number with thousands of digits.") from None
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` arguments into a mapping; values are YAML, so `lr=[0.6, 0.006]` is a list."""
    overrides: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ConfigError(
                f"settings are written key=value, without spaces around '=', received '{word}'. Only one folder "
                "of images is accepted: to train on several, put them into one folder."
            )
        try:
            overrides[key.strip()] = _load_yaml(text)
        except ValueError as error:
            raise ConfigError(f"the value of '{key}' is not valid YAML: {received(text)}.") from error
    return overrides


def to_yaml(config: Config) -> str:
    """Format a configuration as YAML that `read_yaml` and `resolve` read back unchanged, except for secrets."""
    return yaml.safe_dump(recorded(config), sort_keys=False, default_flow_style=None)
