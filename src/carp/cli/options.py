"""The words of a command: settings as key=value, and the options that several commands have."""

import os
import shlex
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from carp.cli import completion
from carp.errors import CheckpointError, ConfigError, nearest

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings, e.g. epochs=50 lr=0.3.", autocompletion=completion.settings
    ),
]
# Options that do not exist arrive among the settings, and `parse` tells how to write them
WITH_SETTINGS = {"ignore_unknown_options": True}

Branches = Annotated[
    list[str] | None,
    typer.Option("--branch", help="Encoder of a run: teacher, student, untrained, raw pixels; may be repeated."),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or mps.", autocompletion=completion.one_of("auto", "cpu", "cuda", "mps"))
]


def parse(context: typer.Context, words: list[str]) -> dict[str, Any]:
    """Read key=value words; an option that does not exist is told the nearest one, or its spelling as a setting."""
    from carp.config import Config
    from carp.config.recipe import parse_overrides

    flags = {key for key, field in Config.model_fields.items() if field.annotation is bool}
    _refuse_unknown_options(context, words, Config.model_fields, "`carp settings` lists the settings", flags)
    overrides = parse_overrides(words)
    _refuse_options(context, overrides)
    for key in overrides:
        if key not in Config.model_fields:
            raise ConfigError(f"there is no setting '{key}'.{nearest(key, Config.model_fields)}")
    return overrides


def parse_protocol(context: typer.Context, words: list[str], settings: Collection[str]) -> dict[str, Any]:
    """Read the key=value words of a protocol, which has these settings; its settings model checks names and values."""
    from carp.config.recipe import parse_overrides

    _refuse_unknown_options(context, words, (), "see --help")
    if plain := [word for word in words if "=" not in word]:
        if Path(plain[0]).expanduser().exists():
            raise ConfigError(f"images are given with an option: write --data {shlex.quote(plain[0])}.")
        raise ConfigError(f"settings are written key=value, without spaces around '=', received '{plain[0]}'.")
    overrides = parse_overrides(words)
    _refuse_options(context, {key: value for key, value in overrides.items() if key not in settings})
    return overrides


def _refuse_unknown_options(
    context: typer.Context, words: list[str], settings: Collection[str], where: str, flags: Collection[str] = ()
) -> None:
    """Tell of a word that looks like an option: how it is written as a setting, or the nearest that there is."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        option, _, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        if key in settings:
            after = "true" if key in flags else "".join(words[place + 1 : place + 2])
            setting = f"{key}={value or after or 'VALUE'}"
            raise ConfigError(f"there is no option '{option}': settings are written key=value, here {setting}.")
        options = _options(context)
        raise ConfigError(
            f"there is no option '{option}'.{_nearest(key, options, settings)} Options: {', '.join(options)}; {where}."
        )


def _refuse_options(context: typer.Context, overrides: dict[str, Any]) -> None:
    """Tell how to write an option that was written as a setting."""
    for key, value in overrides.items():
        option = "--" + key.replace("_", "-")
        if option in _options(context):
            flag = any(option in p.opts and getattr(p, "is_flag", False) for p in context.command.params)
            raise ConfigError(f"'{key}' is an option: write {option}{'' if flag else f' {value}'}.")


def _nearest(key: str, options: list[str], settings: Iterable[str]) -> str:
    """' Did you mean …?' with the closest of options and settings, as it is written."""
    names = {name: name for name in settings} | {name.lstrip("-").replace("-", "_"): name for name in options}
    close = get_close_matches(key, names, n=1)
    return f" Did you mean '{names[close[0]]}'?" if close else ""


def _options(context: typer.Context) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]


def check_model(model: str | None) -> None:
    """Tell of a place that does not exist before anything slow is imported; `METHOD:FILE` is looked at later."""
    if model is not None and ":" not in model and not Path(model).expanduser().exists():
        raise CheckpointError(
            f"there is no folder or file {model}. Give the --out folder of `carp train`; `carp weights` tells which "
            "files go in its place."
        )


def check_data(*places: str | None) -> None:
    """Raise if images are at a path that does not exist, before torch is imported."""
    from carp.images.open_source import check_exists

    for place in filter(None, places):
        check_exists(place)


def is_first_process() -> bool:
    """Under torchrun only one of the processes speaks."""
    return os.environ.get("RANK", "0") == "0"
