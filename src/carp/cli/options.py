"""Settings as key=value words, checks of arguments, and the options that commands share."""

import os
import shlex
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from carp.cli import completion
from carp.errors import CheckpointError, ConfigError, nearest
from carp.runs.epoch_argument import split_epoch

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings, e.g. epochs=50 lr=0.3.", autocompletion=completion.settings
    ),
]
PlannedRecipe = Annotated[
    str | None,
    typer.Option(
        help="Recipe that you plan to train with (`carp recipes`). Default: folder.", autocompletion=completion.recipes
    ),
]
# Unknown options arrive among the settings, and `parse` explains how to write them
WITH_SETTINGS = {"ignore_unknown_options": True}

Branches = Annotated[
    list[str] | None,
    typer.Option(
        "--branch",
        help="Encoder of a run: teacher, student, untrained or raw pixels; can be repeated. teacher@last uses the "
        "newest checkpoint of a run with a start, instead of its best one.",
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Use the run as it was at the end of this epoch, like RUN@25. Default: the newest checkpoint; of a run "
        "with --from, the best one.",
    ),
]
Epochs = Annotated[
    list[str] | None,
    typer.Option(
        "--epoch",
        help="Use the run as it was at the end of this epoch, like RUN@25; can be repeated. all: every epoch that was "
        "kept. Default: the newest checkpoint; of a run with --from, the best one.",
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or mps.", autocompletion=completion.one_of("auto", "cpu", "cuda", "mps"))
]


def parse(context: typer.Context, words: list[str]) -> dict[str, Any]:
    """Read key=value words; the error for an unknown option suggests the nearest one, or how to write the setting."""
    from carp.config import Config
    from carp.config.recipe import parse_overrides

    flags = {key for key, field in Config.model_fields.items() if field.annotation is bool}
    _refuse_unknown_options(context, words, Config.model_fields, "`carp settings` lists the settings", flags)
    overrides = parse_overrides(words)
    _refuse_options(context, overrides)
    for key in overrides:  # a word such as quiet=true must not become an argument of the Python function
        if key not in Config.model_fields:
            hint = nearest(key, Config.model_fields)
            raise ConfigError(f"there is no setting '{key}'.{hint} `carp settings` lists all settings.")
    return overrides


def parse_protocol(context: typer.Context, words: list[str], settings: Collection[str]) -> dict[str, Any]:
    """Read the key=value words of a protocol, which has these settings; its settings model checks names and values."""
    from carp.config.recipe import parse_overrides

    _refuse_unknown_options(context, words, (), "see --help")
    if plain := [word for word in words if "=" not in word]:
        if Path(plain[0]).expanduser().exists():
            raise ConfigError(
                f"images must be given with --data, received {plain[0]}: write --data {shlex.quote(plain[0])}."
            )
        raise ConfigError(f"settings are written key=value, without spaces around '=', received '{plain[0]}'.")
    overrides = parse_overrides(words)
    _refuse_options(context, {key: value for key, value in overrides.items() if key not in settings})
    return overrides


def _refuse_unknown_options(
    context: typer.Context, words: list[str], settings: Collection[str], where: str, flags: Collection[str] = ()
) -> None:
    """Raise if a word is an unknown option: suggest how to write it as a setting, or the nearest option."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        option, _, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        if key in settings:
            after = "true" if key in flags else "".join(words[place + 1 : place + 2])
            setting = f"{key}={value or after or 'VALUE'}"
            raise ConfigError(f"there is no option '{option}'. Settings are written key=value: write {setting}.")
        options = _options(context)
        raise ConfigError(
            f"there is no option '{option}'.{_nearest(key, options, settings)} Options: {', '.join(options)}; {where}."
        )


def refuse_settings(context: typer.Context, places: Iterable[Path]) -> None:
    """Raise if an argument is not a file but an option written as a setting, for a command without settings."""
    for place in places:
        key, equals, value = str(place).partition("=")
        if equals and not place.exists():
            _refuse_options(context, {key: value})


def _refuse_options(context: typer.Context, overrides: dict[str, Any]) -> None:
    """Raise if an option was written as a setting."""
    for key, value in overrides.items():
        option = "--" + key.replace("_", "-")
        if option in _options(context):
            flag = any(option in p.opts and getattr(p, "is_flag", False) for p in context.command.params)
            raise ConfigError(
                f"'{key}' is an option, received as a setting. Write {option}{'' if flag else f' {value}'}."
            )


def _nearest(key: str, options: list[str], settings: Iterable[str]) -> str:
    """' Did you mean …?' with the closest option or setting."""
    names = {name: name for name in settings} | {name.lstrip("-").replace("-", "_"): name for name in options}
    close = get_close_matches(key, names, n=1)
    return f" Did you mean '{names[close[0]]}'?" if close else ""


def _options(context: typer.Context) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]


def parse_epochs(model: str | None, words: Iterable[str] | None) -> list[int]:
    """Return the epochs that were given as `--epoch 25 --epoch 50`, `--epoch 25,50` or `--epoch all`."""
    given = [word.strip() for together in words or () for word in together.split(",")]
    if given == ["all"]:
        if model is None:
            raise ConfigError("--epoch all needs a run, but no model was given. Give a run folder.")
        from carp.runs.run_folder import open_run

        if not (found := open_run(model).kept_epochs()):
            raise CheckpointError(
                f"the run {model} has no checkpoint at the end of an epoch. Train with keep_epochs to keep some."
            )
        return found
    for word in given:
        if not word.isdecimal():
            raise ConfigError(f"--epoch must be a whole number of at least 0, or all, received '{word}'.")
    return list(dict.fromkeys(map(int, given)))


def check_model(model: str | None) -> None:
    """Raise if a model does not exist, before anything slow is imported; `METHOD:FILE` is checked later."""
    if model is None or ":" in model:
        return
    from carp.encoders.packaged import PACKAGED, packaged

    if row := packaged(model):
        row.path()
    elif not split_epoch(Path(model).expanduser())[0].exists():
        raise CheckpointError(
            f"there is no folder or file {model}.{nearest(model, PACKAGED)} Give the --out folder of `carp train`, or "
            "weights (`carp weights` lists the formats)."
        )


def check_data(*places: str | None) -> None:
    """Raise if images are at a path that does not exist, before torch is imported."""
    from carp.images.open_source import check_exists

    for place in filter(None, places):
        check_exists(place)


def is_first_process() -> bool:
    """Return whether this process prints; under torchrun only the first does."""
    return os.environ.get("RANK", "0") == "0"
