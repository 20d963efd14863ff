"""The base of every settings model except the configuration of a run: values are validated on construction."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from carp.errors import ConfigError, nearest, received, requirement


class CheckedModel(BaseModel):
    """A frozen model. A wrong value raises a `ConfigError` that names the key, the value and what is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _as_config_error(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise ConfigError(_describe(error, list(cls.model_fields))) from None


def _describe(error: ValidationError, known: list[str]) -> str:
    """Return the first problem in one line."""
    wrong = error.errors()[0]
    key, value = str(wrong["loc"][0]) if wrong["loc"] else "", wrong["input"]
    if wrong["type"] == "extra_forbidden":
        return f"there is no setting '{key}'.{nearest(key, known)} Settings: {', '.join(known)}."
    message = requirement(wrong["msg"])
    return f"{key} {message}, received {received(value)}." if key else f"{message}."
