"""Settings of the optimiser and of everything that follows a schedule."""

from typing import Literal, Self

from pydantic import Field, model_validator

from carp.config.batch_settings import BatchSettings, LengthSettings
from carp.config.field_types import LARGEST_FACTOR, MOST_EPOCHS, Schedule
from carp.config.model_settings import HeadSettings


class OptimiserSettings(BatchSettings):
    """LARS, SGD or AdamW, and its learning rate."""

    optimiser: Literal["lars", "sgd", "adamw"] = Field("lars", description="Optimiser.")
    lr: Schedule = Field((0.6, 0.006), description="Learning rate; see lr_scaling.")
    prototype_lr: float = Field(
        1.0,
        ge=0,
        le=LARGEST_FACTOR,
        description="Learning rate of the prototypes relative to lr; 0 keeps them as initialised.",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Learning rate of each layer of the encoder relative to the layer above it. With 0.75, the stem "
        "below 12 layers has 0.75^12 = 3% of lr; with 1, all layers have the same.",
    )
    lr_scaling: Literal["linear", "none"] = Field(
        "linear", description="linear multiplies the initial value of lr by batch_size / 256; none leaves it unchanged."
    )
    warmup_epochs: float = Field(
        0.0, ge=0, le=MOST_EPOCHS, description="Epochs over which lr rises from nearly 0 to its initial value."
    )
    schedule_endpoint: bool = Field(
        True,
        description="Whether schedules reach their end value at the last step; with false, they would reach it one "
        "step later.",
    )
    weight_decay: Schedule = Field((1e-6, 1e-6), description="Weight decay of matrices and filters.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of lars and sgd.")
    trust: float = Field(
        0.001, gt=0, le=LARGEST_FACTOR, description="Size of a lars step relative to the norm of the weights."
    )
    clip_gradient: float | None = Field(
        None, gt=0, le=1e12, description="Largest gradient norm; a longer gradient is scaled down to it."
    )

    @property
    def base_lr(self) -> float:
        """The starting learning rate, scaled with the batch."""
        scale = self.batch_size / 256 if self.lr_scaling == "linear" else 1.0
        return self.lr[0] * scale


class OptimisationSettings(OptimiserSettings, HeadSettings, BatchSettings, LengthSettings):
    """Everything that changes from step to step: learning rate, weight decay, momentum of the teacher, entropy."""

    @model_validator(mode="after")
    def _warmup_ends_before_training(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be less than epochs ({self.epochs}), received {self.warmup_epochs}")
        return self
