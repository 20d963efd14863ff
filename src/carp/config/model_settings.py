"""Settings of the model: encoder, projector, prototypes, and the weights of the loss."""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from carp.config.field_types import (
    LARGEST_FACTOR,
    LARGEST_WIDTH,
    MOST_PROTOTYPES,
    MOST_STEPS,
    SMALL_IMAGE,
    Fraction,
    MomentumSchedule,
    Schedule,
)
from carp.config.image_settings import SizeSettings
from carp.config.readings import ReadingSettings
from carp.errors import ConfigError


class EncoderSettings(SizeSettings):
    """Everything needed to build an encoder."""

    encoder: str = Field("resnet50", description="Name of a timm model.")
    encoder_options: dict[str, Any] = Field({}, description="Options of the timm model that describe the network.")
    stem: Literal["auto", "encoder", "small"] = Field(
        "auto",
        description="First layers: encoder keeps the encoder's own, small is one 3×3 convolution without pooling "
        f"(ResNets only), auto is small for ResNets with global_size up to {SMALL_IMAGE}.",
    )
    stem_stride: int = Field(
        1, ge=1, le=4, description="Stride of the small stem; 2 is about four times cheaper than 1."
    )


class HeadSettings(ReadingSettings):
    """Projector, prototypes, teacher, and the weight of the entropy term."""

    projector_hidden: int = Field(2048, ge=1, le=LARGEST_WIDTH, description="Width of the projector's hidden layers.")
    projector_init: Literal["default", "truncated_normal"] = Field(
        "default",
        description="Initial weights of the projector's linear layers: PyTorch's default, or a truncated normal "
        "distribution with standard deviation 0.02 and no bias.",
    )
    embedding: int = Field(256, ge=1, le=LARGEST_WIDTH, description="Dimensions of embeddings and prototypes.")
    embedding_scale: float = Field(
        1.0,
        gt=0,
        le=LARGEST_FACTOR,
        description="Initial scale of the projector's last layer; training on few images starts faster with 5.",
    )
    embedding_length: float | None = Field(
        None,
        gt=0,
        le=LARGEST_FACTOR,
        description="Length of every embedding vector; null leaves it free, as in the paper.",
    )
    num_prototypes: int = Field(65_536, ge=1, le=MOST_PROTOTYPES, description="Number of prototypes.")
    block_size: int = Field(
        512,
        ge=1,
        le=MOST_PROTOTYPES,
        description="Prototypes per block; must divide num_prototypes. If both are equal, there is one block (CARL).",
    )
    partition: Literal["random", "fixed"] = Field(
        "random",
        description="random splits the prototypes into new random blocks at every step; fixed keeps the same blocks.",
    )
    prototypes: Literal["replicated", "sharded"] = Field(
        "replicated",
        description="replicated: every process holds all prototypes; sharded: every process holds a share of them, "
        "blocks are drawn within shards, and shards exchange prototypes (docs/scaling.md).",
    )
    prototype_shards: int | None = Field(
        None,
        ge=1,
        le=MOST_PROTOTYPES,
        description="Number of shards; null is the number of processes that the run starts with.",
    )
    exchange_steps: int = Field(100, ge=1, le=MOST_STEPS, description="Steps between two exchanges among the shards.")
    exchange_share: Fraction = Field(0.5, description="Share of its prototypes that a shard gives away in an exchange.")
    pairs: Literal["sum", "mean"] = Field(
        "sum",
        description="How the consistency of two views is combined: sum adds both directions (twice the mean over all "
        "ordered pairs, with more views); mean averages them, so that the same entropy_weight counts twice as much.",
    )
    entropy_weight: Schedule = Field(
        (1.0, 1.0), description="Weight of the uniformity term; a higher weight spreads images over more prototypes."
    )
    uniformity: Literal["entropy", "collision"] = Field(
        "entropy",
        description="The second term of the loss: entropy is kl_to_uniform, as in the paper; collision is the "
        "logarithm of how often two different images get the same assignment, which has no bias in small batches. At "
        "half the entropy_weight it has about the same strength.",
    )
    koleo_weight: float = Field(
        0.0,
        ge=0,
        le=LARGEST_FACTOR,
        description="Weight of the KoLeo term, which pushes every embedding away from its nearest neighbour in the "
        "batch; 0 leaves it out, as in the paper. Weights above 1 need an embedding_length and a koleo_distance of "
        "about 0.5.",
    )
    koleo_distance: float = Field(
        1e-4,
        ge=1e-4,
        le=2,
        description="Distance of neighbours, of embeddings at unit length, at which the KoLeo term pushes hardest. It "
        "pushes closer ones less, so that it does not win at the start, when all embeddings are close.",
    )
    teacher_momentum: MomentumSchedule = Field(
        (0.99, 1.0), description="Share of its own weights that the teacher keeps at every step; 0 means no teacher."
    )

    teacher_update: Literal["after", "before"] = Field(
        "after",
        description="When the teacher is updated: after the optimiser's step, or before it, from the weights that the "
        "student started the step with.",
    )
    zero_momentum: Literal["siamese", "copy"] = Field(
        "siamese",
        description="What teacher_momentum=0 means: siamese has one network, whose own assignments are the targets; "
        "copy has a teacher that is a copy of the student, made at teacher_update.",
    )
    batch_norm_views: Literal["separate", "joint"] = Field(
        "separate",
        description="What batch norm normalises together: separate is one view at a time; joint is all views of one "
        "size in the encoder, and all views in the projector.",
    )
    encoder_statistics: Literal["batch", "kept"] = Field(
        "batch",
        description="Means and variances by which batch norm normalises in the encoder: batch takes those of the views "
        "and learns them for later use; kept takes those of the start and leaves them as they are.",
    )
    start_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="How much of the start remains in the teacher's encoder, which follows start_share x start + "
        "(1 - start_share) x student. More keeps what the start knows; less adapts further. auto is 0.5 if the start "
        "recognises at least half of the views of a sample of the images, and otherwise 0.",
    )

    @model_validator(mode="after")
    def _blocks_and_shards_divide_the_prototypes(self) -> Self:
        check_block_size(self.num_prototypes, self.block_size)
        if self.num_prototypes % (self.shards * self.block_size):
            raise ValueError(
                f"num_prototypes must be a multiple of prototype_shards x block_size ({self.shards} x "
                f"{self.block_size}), received {self.num_prototypes}"
            )
        return self

    @property
    def shards(self) -> int:
        """Number of shards that the prototypes are split into; no block spans two shards."""
        return (self.prototype_shards or 1) if self.prototypes == "sharded" else 1

    @property
    def siamese(self) -> bool:
        """Whether student and teacher share their weights."""
        return self.teacher_momentum == (0.0, 0.0) and self.zero_momentum == "siamese"


class ModelSettings(HeadSettings, EncoderSettings, SizeSettings, ReadingSettings):
    """Everything needed to build student and teacher."""


def check_block_size(num_prototypes: int, block_size: int) -> None:
    """Raise unless blocks of `block_size` divide the prototypes evenly."""
    if num_prototypes < 1 or block_size < 1:
        raise ConfigError(
            f"num_prototypes and block_size must be at least 1, received {num_prototypes} and {block_size}."
        )
    if block_size > num_prototypes:
        raise ConfigError(
            f"block_size must be at most num_prototypes ({num_prototypes}), received {block_size}. "
            f"block_size={num_prototypes} is a single block (CARL); or use more prototypes."
        )
    if num_prototypes % block_size:
        below, above = _nearest_divisors(num_prototypes, block_size)
        raise ConfigError(
            f"block_size must divide num_prototypes ({num_prototypes}), received {block_size}. "
            f"The nearest divisors are {below} and {above}. Or use a multiple as num_prototypes, such as "
            f"{block_size * max(1, round(num_prototypes / block_size))}."
        )


def _nearest_divisors(num_prototypes: int, block_size: int) -> tuple[int, int]:
    """Return the divisors of `num_prototypes` just below and just above `block_size`."""
    small = [n for n in range(1, math.isqrt(num_prototypes) + 1) if num_prototypes % n == 0]
    divisors = [*small, *(num_prototypes // n for n in small)]
    return max(n for n in divisors if n <= block_size), min(n for n in divisors if n >= block_size)
