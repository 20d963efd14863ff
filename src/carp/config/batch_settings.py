"""Settings of length and batches: number of epochs, images per step, and the seed that determines their order."""

from typing import Literal, Self

from pydantic import Field, model_validator

from carp.config.field_types import LARGEST_BATCH, MOST_EPOCHS
from carp.config.readings import ReadingSettings


class LengthSettings(ReadingSettings):
    """How long a run is."""

    epochs: int = Field(100, ge=1, le=MOST_EPOCHS, description="Number of times that every image is seen.")


class BatchSettings(ReadingSettings):
    """Which images make up a step, and how many of them are computed at once."""

    batch_size: int = Field(4096, ge=2, le=LARGEST_BATCH, description="Images per optimiser step.")
    micro_batch: int | None = Field(
        None,
        ge=2,
        le=LARGEST_BATCH,
        description="Images that pass through the encoder at once; auto is as many as fit into memory.",
    )
    accumulate: Literal["exact", "fast", "independent"] = Field(
        "exact",
        description="How micro-batches are combined: exact computes the loss of the whole batch, in two passes; fast "
        "averages the losses of the micro-batches, in one pass; independent does the same with a new random partition "
        "for every micro-batch.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all random numbers of the run.")

    @model_validator(mode="after")
    def _no_micro_batch_of_one(self) -> Self:
        if self.micro_batch and self.batch_size % self.micro_batch == 1:
            raise ValueError(
                f"micro_batch must not leave a single image of batch_size ({self.batch_size}) for the last "
                f"micro-batch, because batch norm needs two, received {self.micro_batch}"
            )
        return self
