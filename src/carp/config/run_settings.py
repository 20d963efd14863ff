"""Settings of a run's records: validation, logs, checkpoints, health."""

from typing import Literal

from pydantic import Field

from carp.config.field_types import MOST_EPOCHS, MOST_MINUTES, MOST_STEPS, Settings


class RunSettings(Settings):
    """What a run measures and writes while it trains."""

    validation: str | None = Field(
        None, description="Labelled images for k-NN during training (--val); the encoder never sees their labels."
    )
    validate_epochs: int = Field(1, ge=1, le=MOST_EPOCHS, description="Epochs between two k-NN validations.")
    log_steps: int = Field(10, ge=1, le=MOST_STEPS, description="Steps between two lines of metrics.jsonl.")
    tensorboard: bool = Field(False, description="Also write curves for TensorBoard.")
    checkpoint_steps: int = Field(500, ge=1, le=MOST_STEPS, description="Steps between two checkpoints, at most.")
    checkpoint_minutes: float = Field(
        10.0, gt=0, le=MOST_MINUTES, description="Minutes between two checkpoints, at most."
    )
    keep_checkpoints: int = Field(3, ge=2, le=MOST_EPOCHS, description="Number of checkpoints to keep.")
    health_steps: int = Field(50, ge=1, le=MOST_STEPS, description="Steps between two diagnoses.")
    on_collapse: Literal["warn", "stop"] = Field("warn", description="What to do when the run collapses.")
