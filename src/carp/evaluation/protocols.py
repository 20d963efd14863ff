"""The protocols by name, and their settings: the keyword arguments of their functions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from carp.errors import ConfigError, nearest
from carp.evaluation.detection import detection
from carp.evaluation.few_shot import few_shot
from carp.evaluation.kmeans import kmeans
from carp.evaluation.knn import knn
from carp.evaluation.linear import linear_probe
from carp.evaluation.result import Result

Protocol = Callable[..., Result]  # (train features, labels, test features, labels, *, settings)
PROTOCOLS: dict[str, Protocol] = {"knn": knn, "kmeans": kmeans, "linear": linear_probe, "few-shot": few_shot}
ON_IMAGES: dict[str, Protocol] = {"detection": detection}  # (encoder, training images, test images, *, settings)
SINGLE_LABEL = frozenset({"knn", "kmeans", "linear"})  # these need exactly one label per image
_NOT_SETTINGS = {"progress", "warn", "device", "state", "save_seconds"}


def check_settings(name: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a protocol with their types made right, or an error that names the key, its value, and the rest.

    Numbers that a person writes as one are taken for a list of one where a list is wanted: `k=5`.
    """
    accepted = settings_of(function)
    for key in settings:
        if key not in accepted:
            known = ", ".join(accepted)
            raise ConfigError(f"{name} has no setting '{key}'.{nearest(key, accepted)} Its settings: {known}.")
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
        raise ConfigError(f"{name}: {key} {message}, received {settings[key]!r}.") from None


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of a protocol with their defaults."""
    parameters = inspect.signature(function).parameters
    return {
        key: parameter
        for key, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key not in _NOT_SETTINGS
    }


def _listed(parameter: inspect.Parameter, value: Any) -> Any:
    return [value] if isinstance(parameter.default, tuple) and not isinstance(value, list | tuple) else value
