"""The settings of a protocol, which are the keyword arguments of its function: checked, with their types made right."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import ConfigDict, ValidationError, create_model

from carp.errors import ConfigError, nearest, received
from carp.evaluation.signatures import NOT_SETTINGS


def check_settings(name: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a protocol with their types made right, or an error that names the key, its value, and the rest.

    Numbers that a person writes as one are taken for a list of one where a list is wanted: `k=5`.
    """
    accepted = settings_of(function)
    check_names(name, settings, accepted)
    fields: Any = {key: (accepted[key].annotation, ...) for key in settings}
    model = create_model(name, __config__=ConfigDict(strict=False, arbitrary_types_allowed=True), **fields)
    try:
        return {
            key: getattr(model(**{k: _listed(accepted[k], v) for k, v in settings.items()}), key) for key in settings
        }
    except ValidationError as error:
        wrong = error.errors()[0]
        key = str(wrong["loc"][0])
        message = wrong["msg"].replace("Input should be", "must be").replace("Value error, ", "")
        raise ConfigError(f"{name}: {key} {message}, received {received(settings[key])}.") from None


def check_names(name: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Raise if a setting is given that a protocol does not have."""
    known = list(accepted)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{name} has no setting '{key}'.{nearest(key, known)} Its settings: {', '.join(known) or 'none'}."
            )


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of a protocol with their defaults and types."""
    parameters = inspect.signature(function).parameters
    return {
        key: parameter
        for key, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key not in NOT_SETTINGS
    }


def _listed(parameter: inspect.Parameter, value: Any) -> Any:
    if value == "None" and type(None) in get_args(parameter.annotation):
        return None  # as Python and the documentation write it; YAML writes null
    return [value] if isinstance(parameter.default, tuple) and not isinstance(value, list | tuple) else value
