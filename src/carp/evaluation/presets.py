"""Presets: settings of a protocol under a name, so that a published evaluation is one word on the command line.

    class KmeansSettings(PresetSettings):
        presets = {"paper": {}, "authors": {"redos": 10, "interpolation": "bilinear"}}
        redos: int = Field(20, …)

A preset names settings of the protocol and options of feature extraction. Values that the user gives take precedence
over the preset. `preset=None` is CARP's default.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from carp.errors import ConfigError
from carp.evaluation.protocol import Settings

Preset = Literal["paper", "authors"]


class PresetSettings(Settings):
    """Settings of a protocol that has presets."""

    presets: ClassVar[Mapping[Preset, Mapping[str, Any]]]
    """The values that differ from the defaults, by name of the preset."""

    preset: Preset | None = Field(
        None,
        description="Evaluate as published: as in the text of the paper (paper) or as in the authors' scripts "
        "(authors). Other settings and options that you give take precedence. Default: as described in "
        "docs/protocols.md.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        name: Any = values.get("preset") if isinstance(values, Mapping) else None
        if name not in get_args(Preset):
            return values
        if name not in cls.presets:
            raise ConfigError(f"there is no preset '{name}' for this protocol. Presets: {', '.join(cls.presets)}.")
        return {**{key: value for key, value in cls.presets[name].items() if key in cls.model_fields}, **values}

    def extraction(self) -> dict[str, Any]:
        """Return the options of feature extraction that the preset chooses."""
        chosen = {} if self.preset is None else self.presets[self.preset]
        return {key: value for key, value in chosen.items() if key not in type(self).model_fields}
