"""From plain values to a checked configuration, or to the part of it that a command needs."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from carp.config.auto_sizes import sizes_for, usable_cores
from carp.config.field_types import Form, Settings
from carp.config.run_config import Config
from carp.errors import ConfigError, nearest, received, requirement

P = TypeVar("P", bound=Settings)


def resolve(values: Mapping[str, Any], *, num_images: int) -> Config:
    """Replace every `auto` by the rule of `sizes_for` and check all keys and values.

    `micro_batch: auto` becomes None, an undivided batch, and `precision: auto` becomes fp32, until `carp train` knows
    the machine. `start_share: auto` becomes a half, until `carp train` has measured the start.
    """
    return _validated(Config, values, values, num_images)


def resolve_part(part: type[P], values: Mapping[str, Any], *, num_images: int = 0) -> P:
    """Do the same for one part of the configuration; the settings of other parts are left out."""
    own = {key: value for key, value in values.items() if key in part.model_fields}
    return _validated(part, own, values, num_images)


def _validated(part: type[P], values: Mapping[str, Any], all_values: Mapping[str, Any], num_images: int) -> P:
    automatic = _automatic(num_images, started=all_values.get("start") is not None)
    auto = {key: automatic[key] for key, value in values.items() if value == "auto" and key in automatic}
    try:
        return part.model_validate({**values, **auto})
    except ValidationError as error:
        raise ConfigError(_describe(error)) from error


def _automatic(num_images: int, *, started: bool) -> dict[str, Any]:
    """Return the values of all settings that may be `auto`.

    Training replaces micro_batch and precision, to fit the machine, and start_share, to fit the images.
    """
    return {
        **sizes_for(num_images, started=started).model_dump(),
        "micro_batch": None,
        "precision": "fp32",
        "start_share": 0.5 if started else 0.0,
        "workers": usable_cores(),
    }


AUTOMATIC = frozenset(_automatic(0, started=False))


def check_keys(values: Mapping[str, Any]) -> None:
    """Raise for misspelt keys, and for values that are wrong whatever the number of images."""
    try:
        Config.model_validate({key: value for key, value in values.items() if value != "auto"})
    except ValidationError as error:
        single = [item for item in error.errors() if item["loc"]]
        if single:
            raise ConfigError(_describe(error)) from error
    except ConfigError:
        pass  # values that contradict each other may fit once the sizes are known


def form_of(key: str) -> str:
    """Return how a setting that holds several numbers is written; empty for all others."""
    return next((item.words for item in Config.model_fields[key].metadata if isinstance(item, Form)), "")


def _describe(error: ValidationError) -> str:
    """Return one sentence per problem: the key, what is accepted, the value received, the nearest spelling."""
    problems = []
    for item in error.errors():
        key, value, message = str(item["loc"][0]) if item["loc"] else "", item["input"], requirement(item["msg"])
        if item["type"] == "extra_forbidden":
            problems.append(f"there is no setting '{key}'.{nearest(key, Config.model_fields)}")
        elif not key:
            problems.append(f"{message}.")
        elif item["type"] in {"missing", "too_long", "tuple_type"}:  # a wrong number of numbers
            problems.append(f"{key} must be {form_of(key)}, received {received(value)}.")
        else:
            accepted = item.get("ctx", {}).get("expected", "")
            hint = nearest(received(value).strip("'"), str(accepted).replace("'", "").replace(" or ", ", ").split(", "))
            auto = " or auto" if key in AUTOMATIC and "auto" not in message else ""
            hint = hint or (auto and nearest(received(value).strip("'"), ["auto"]))
            problems.append(f"{key} {message}{_both_bounds(key)}{auto}, received {received(value)}.{hint}")
    return " ".join(dict.fromkeys(problems))  # both ends of a pair may have the same problem


def _both_bounds(key: str) -> str:
    """Return the accepted range of a number that has one, as an addition to the bound that was violated."""
    low, high = (
        next((getattr(item, name) for item in Config.model_fields[key].metadata if hasattr(item, name)), None)
        for name in ("ge", "le")
    )
    return "" if low is None or high is None else f" (accepted: {low} to {high})"
