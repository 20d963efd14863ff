"""Settings of a run's records: validation, logs, checkpoints, health."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from carp.config.batch_settings import LengthSettings
from carp.config.field_types import LARGEST_BATCH, MOST_EPOCHS, MOST_MINUTES, MOST_STEPS, Form


def _number_or_list_of_epochs(value: Any) -> Any:
    """Check both ways to write epochs with one message."""
    numbers = value if isinstance(value, list | tuple) else [value]
    plain = all(isinstance(epoch, int) and not isinstance(epoch, bool) for epoch in numbers)
    if value is not None and not (numbers and plain and all(1 <= epoch <= MOST_EPOCHS for epoch in numbers)):
        raise ValueError(f"must be {_EPOCHS.words}")
    return tuple(sorted(set(numbers))) if isinstance(value, list | tuple) else value


_EPOCHS = Form("a number of epochs, a list of epochs such as [25, 50], or null")
Epochs = Annotated[int | tuple[int, ...] | None, BeforeValidator(_number_or_list_of_epochs), _EPOCHS]


class RunSettings(LengthSettings):
    """What a run measures and writes while it trains."""

    validation: str | None = Field(
        None, description="Labelled images for k-NN during training (--val); the encoder never sees their labels."
    )
    validation_bank: Literal["sample", "all"] = Field(
        "sample",
        description="Images used for k-NN during training: sample takes at most 10,000 training and 5,000 validation "
        "images, all takes every image, as `carp eval knn` does.",
    )
    held_out: int = Field(
        0,
        ge=0,
        le=LARGEST_BATCH,
        description="Number of images that a run with a start does not train on, but uses to compare itself with the "
        "start without labels; auto is a tenth of the images, at most 500, or none if there are fewer than 300.",
    )
    validate_epochs: int = Field(1, ge=1, le=MOST_EPOCHS, description="Epochs between two validations.")
    log_steps: int = Field(10, ge=1, le=MOST_STEPS, description="Steps between two lines of metrics.jsonl.")
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = Field(
        (), description="Experiment trackers that also receive the metrics, e.g. [tensorboard, wandb]."
    )
    tensorboard: bool = Field(False, description="Short for loggers=[tensorboard].")
    report: bool = Field(True, description="Write a page about the run at its end: RUN/report/report.html.")
    checkpoint_steps: int = Field(
        500, ge=1, le=MOST_STEPS, description="Maximum number of steps between two checkpoints."
    )
    checkpoint_minutes: float = Field(
        10.0, gt=0, le=MOST_MINUTES, description="Maximum number of minutes between two checkpoints."
    )
    keep_checkpoints: int = Field(3, ge=2, le=MOST_EPOCHS, description="Number of checkpoints to keep.")
    keep_epochs: Epochs = Field(
        None,
        description="Epochs whose checkpoints are never removed, for use as RUN@EPOCH: 25 means every 25 epochs, [25, "
        "50] these two.",
    )
    health_steps: int = Field(50, ge=1, le=MOST_STEPS, description="Steps between two diagnoses.")
    on_collapse: Literal["warn", "stop"] = Field("warn", description="What to do when the run collapses.")

    @model_validator(mode="after")
    def _kept_epochs_are_part_of_the_run(self) -> Self:
        if isinstance(self.keep_epochs, tuple) and self.keep_epochs[-1] > self.epochs:
            raise ValueError(f"keep_epochs must not exceed epochs ({self.epochs}), received {list(self.keep_epochs)}")
        return self

    @property
    def trackers(self) -> tuple[str, ...]:
        """The experiment trackers, however they were named."""
        return (*self.loggers, *(("tensorboard",) if self.tensorboard else ()))

    def keeps(self, epoch: int) -> bool:
        """Return whether the checkpoint at the end of this epoch, counted from 1, is never removed."""
        kept = self.keep_epochs
        return epoch % kept == 0 if isinstance(kept, int) else epoch in (kept or ())
