"""Settings as text: recipes and other YAML files, and the `key=value` words of a command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from carp.config import Config
from carp.errors import ConfigError, nearest

RECIPES = Path(__file__).parent / "recipes"


def list_recipes() -> dict[str, str]:
    """Return the name and the first comment line of every recipe that ships with CARP."""
    return {path.stem: path.read_text().splitlines()[0].lstrip("# ") for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_path(recipe: str | Path) -> Path:
    """The file of a recipe that is given by name or by path."""
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


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping."""
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not valid YAML: {reason}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, received a {type(values).__name__}.")
    return values


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` words into a mapping; values are YAML, so `lr=[0.6, 0.006]` is a list."""
    overrides: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ConfigError(
                f"settings are written key=value, without spaces around '=', received '{word}'. Only one folder "
                "of images is taken: to train on several, put them into one."
            )
        try:
            overrides[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of '{key}' is not valid YAML: '{text}'.") from error
    return overrides


def to_yaml(config: Config) -> str:
    """Write a configuration as YAML that `read_yaml` and `resolve` read back unchanged."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, default_flow_style=None)
