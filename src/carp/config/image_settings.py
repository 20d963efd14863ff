"""Settings of images and views: where images come from, how they are decoded, which views are drawn."""

from typing import Literal, Self

from pydantic import Field, model_validator

from carp.config.batch_settings import BatchSettings
from carp.config.device_settings import DeviceSettings
from carp.config.field_types import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LARGEST_SIDE,
    MAX_IMAGE_PIXELS,
    MOST_STEPS,
    SMALL_IMAGE,
    Deviation,
    Mean,
    PerView,
    Probability,
    Range,
    Settings,
)


class DataSettings(Settings):
    """Where the images are, and how they are shuffled."""

    source: str = Field(
        "auto", description="Kind of data; auto infers it from the path. docs/data.md has an example of each."
    )
    root: str | None = Field(None, description="Folder of datasets, for torchvision:NAME and dataset:NAME.")
    download: bool = Field(False, description="Whether torchvision may download a dataset that is not in root.")
    cache_gb: float | None = Field(
        None,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="Gigabytes of remote shards to keep on the local disk in total; 0 keeps none. "
        "Default: the environment variable CARP_CACHE_GB, or 50.",
    )
    shuffle_buffer: int = Field(
        10_000,
        ge=1,
        le=MOST_STEPS,
        description="Images that are shuffled together when they come from tar shards or Parquet files. Shards are "
        "read in random order, and neighbouring shards are mixed until they hold this many images.",
    )


class SizeSettings(Settings):
    """The size of the images that the encoder sees."""

    global_size: int = Field(
        224,
        ge=8,
        le=LARGEST_SIDE,
        description="Side of the two global views in pixels; also the size at which images are encoded.",
    )


class ViewSettings(SizeSettings):
    """How views are drawn from an image."""

    global_scale: Range = Field((0.2, 1.0), description="Share of the image's area that a global view shows.")
    local_views: int = Field(
        0, ge=0, le=1000, description="Number of small views in addition to the two global ones (multi-crop)."
    )
    local_size: int = Field(96, ge=8, le=LARGEST_SIDE, description="Side of a local view in pixels.")
    local_scale: Range = Field((0.05, 0.2), description="Share of the image's area that a local view shows.")
    flip: Probability = Field(0.5, description="Probability that a view is mirrored left to right.")
    jitter: Probability = Field(0.8, description="Probability that the colours of a view are changed.")
    brightness: Probability = Field(0.4, description="Strength of random changes in brightness.")
    contrast: Probability = Field(0.4, description="Strength of random changes in contrast.")
    saturation: Probability = Field(0.2, description="Strength of random changes in saturation.")
    hue: float = Field(0.1, ge=0, le=0.5, description="Largest rotation of the hue; 0.5 allows every hue.")
    grey: Probability = Field(0.2, description="Probability that a view is converted to grey.")
    blur: PerView = Field((1.0, 0.1, 0.5), description="Probability of blur.")
    solarise: PerView = Field((0.0, 0.2, 0.0), description="Probability that bright pixels are inverted.")

    interpolation: Literal["bicubic", "bilinear"] = Field(
        "bicubic", description="How images are resized: bicubic or bilinear, both with antialiasing."
    )
    mean: Mean = Field(IMAGENET_MEAN, description="Mean of every colour, subtracted from pixels between 0 and 1.")
    deviation: Deviation = Field(IMAGENET_STD, description="Standard deviation of every colour, to divide by.")

    @model_validator(mode="after")
    def _scales_are_ranges(self) -> Self:
        for key in ("global_scale", "local_scale"):
            low, high = getattr(self, key)
            if low > high:
                raise ValueError(f"{key} must be [low, high] with low <= high, received {[low, high]}")
        return self


class DecodingSettings(Settings):
    """How image files are decoded."""

    workers: int = Field(
        2,
        ge=0,
        le=1024,
        description=f"Processes that decode images on each machine, for global_size above {SMALL_IMAGE}; auto is one "
        "per core. The processes of a run share them.",
    )
    max_image_pixels: int = Field(
        MAX_IMAGE_PIXELS,
        ge=1,
        le=1 << 40,
        description="Largest image that is decoded, in pixels; larger images count as unreadable.",
    )


class QuarantineSettings(Settings):
    """How many unreadable images a run tolerates."""

    max_bad_share: Probability = Field(
        0.05,
        description="Largest share of unreadable images, which are replaced by others; above it, the run stops.",
    )


class LoaderSettings(QuarantineSettings, DecodingSettings, DeviceSettings, ViewSettings, DataSettings, BatchSettings):
    """Everything needed to turn a source into batches of views."""
