"""Two readings of the paper: its text, and its authors' code where the two differ.

`reading` is a set of defaults. It is replaced by the plain settings of its column before they are validated, so a
`Config` records what is computed. A setting that is given takes precedence over the reading.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from carp.config.field_types import Settings

READINGS: dict[str, dict[str, Any]] = {
    "printed": {
        "accumulate": "exact",
        "projector_init": "default",
        "pairs": "sum",
        "batch_norm_views": "separate",
        "teacher_update": "after",
        "zero_momentum": "siamese",
        "schedule_endpoint": True,
    },
    "authors": {
        "accumulate": "independent",
        "projector_init": "truncated_normal",
        "pairs": "mean",
        "batch_norm_views": "joint",
        "teacher_update": "before",
        "zero_momentum": "copy",
        "schedule_endpoint": False,
    },
}


class ReadingSettings(Settings):
    """Which reading of the paper a run follows."""

    reading: Literal["printed", "authors"] = Field(
        "printed",
        description="Defaults of accumulate, projector_init, pairs, batch_norm_views, teacher_update, zero_momentum "
        "and schedule_endpoint: printed follows the text of the paper, and authors follows its authors' "
        "code (docs/training.md).",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Add the settings of the reading that are not given; a reading that does not exist is refused later."""
        if not isinstance(values, dict) or not isinstance(values.get("reading"), str):
            return values
        chosen = READINGS.get(values["reading"], {})
        return {**{key: value for key, value in chosen.items() if key in cls.model_fields}, **values}
