"""The complete configuration of a run, and the differences between two of them."""

from typing import Any, Self

from pydantic import model_validator

from carp.config.batch_settings import BatchSettings, LengthSettings
from carp.config.device_settings import DeviceSettings, ProcessSettings
from carp.config.image_settings import (
    DataSettings,
    DecodingSettings,
    LoaderSettings,
    QuarantineSettings,
    ViewSettings,
)
from carp.config.model_settings import EncoderSettings, HeadSettings, ModelSettings
from carp.config.optimiser_settings import OptimisationSettings, OptimiserSettings
from carp.config.readings import ReadingSettings
from carp.config.run_settings import RunSettings
from carp.config.start_settings import StartSettings
from carp.console.addresses import without_secrets


class Config(
    # Combinations of parts, without fields of their own
    LoaderSettings,
    OptimisationSettings,
    ModelSettings,
    # The parts, last one first: pydantic orders fields by the reversed order of base classes
    QuarantineSettings,
    RunSettings,
    DecodingSettings,
    DeviceSettings,
    ProcessSettings,
    OptimiserSettings,
    StartSettings,
    HeadSettings,
    EncoderSettings,
    ViewSettings,
    DataSettings,
    BatchSettings,
    LengthSettings,
    ReadingSettings,
):
    """Everything that determines a run. The defaults are the paper's ImageNet settings for 100 epochs, two views."""

    @model_validator(mode="after")
    def _kept_statistics_come_from_a_start(self) -> Self:
        if self.encoder_statistics == "kept" and self.start is None:
            raise ValueError(
                "encoder_statistics=kept needs weights to start from (--from), received none. Use "
                "encoder_statistics=batch to start from random weights"
            )
        return self

    @model_validator(mode="after")
    def _a_share_of_the_start_needs_a_start_and_a_teacher(self) -> Self:
        if self.start_share and (self.start is None or self.siamese):
            missing = "weights to start from (--from)" if self.start is None else "a teacher (teacher_momentum above 0)"
            raise ValueError(f"start_share={self.start_share:g} needs {missing}, received none. Use start_share=0")
        return self


# The first key of every group that `carp settings` prints, in the order of the fields.
GROUPS = {
    "reading": "Reading of the paper",
    "epochs": "Length",
    "source": "Data",
    "global_size": "Views",
    "encoder": "Model",
    "optimiser": "Optimiser",
    "sync_batch_norm": "Machine",
    "validation": "Run",
}

# Keys that may change between a run and its continuation, because they do not change what is computed.
FREE_KEYS = frozenset(
    {
        "reading",  # its settings are compared one by one
        "start",  # its digest is compared
        "source",
        "root",
        "download",
        "cache_gb",
        "device",
        "threads",
        "deterministic",
        "workers",
        "timeout_minutes",
        "max_bad_share",
        "loggers",
        "tensorboard",
        "report",
        "checkpoint_steps",
        "checkpoint_minutes",
        "keep_checkpoints",
        "keep_epochs",
        "on_collapse",
    }
)

# Keys that change no weight but the lines of metrics.jsonl, which must equal those of an uninterrupted run.
METRICS_KEYS = frozenset({"log_steps", "health_steps", "validate_epochs", "validation_bank"})


def recorded(config: Config) -> dict[str, Any]:
    """Return the settings as plain values for files and trackers: an address in them loses its secrets."""
    values = config.model_dump(mode="json")
    return {key: without_secrets(value) if isinstance(value, str) else value for key, value in values.items()}


def differences(ours: Config, theirs: Config) -> dict[str, str]:
    """`theirs -> ours` for every key that changes what is computed or written."""
    now, then = (_without_secrets(config) for config in (ours, theirs))
    return {
        key: f"{getattr(then, key)!r} -> {getattr(now, key)!r}"
        for key in Config.model_fields
        if key not in FREE_KEYS and getattr(now, key) != getattr(then, key)
    }


def decisive(config: Config) -> dict[str, Any]:
    """Return the settings that change what is computed or written, as plain values for JSON."""
    return {key: value for key, value in recorded(config).items() if key not in FREE_KEYS}


def _without_secrets(config: Config) -> Config:
    address = config.validation
    return config if address is None else config.model_copy(update={"validation": without_secrets(address)})
