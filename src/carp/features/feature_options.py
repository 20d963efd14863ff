"""How features are extracted: the options that `carp embed`, `eval` and `duplicates` share. Imports without torch."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from carp.checked_model import CheckedModel
from carp.images.views.interpolation import Interpolation

Precision = Literal["fp32", "bf16"]
ENCODER, PROJECTOR = "encoder", "projector"  # layers that every run has


class FeatureOptions(CheckedModel):
    """Options of feature extraction; the description of a field is also its help on the command line."""

    layer: str = Field(ENCODER, description="Which output: encoder (pooled), projector, or a layer such as layer3.")
    size: int | None = Field(
        None, ge=1, description="Side of the images in pixels. Default: the size used for training."
    )
    resize: int | None = Field(
        None,
        ge=1,
        description="Length of the shorter side before the centre crop. Default: 8/7 of size; size itself up to 64.",
    )
    interpolation: Interpolation | None = Field(
        None,
        description="How images are resized: bicubic or bilinear. Default: bicubic, unless a preset says otherwise.",
    )
    precision: Precision = Field("fp32", description="Precision of the encoder: fp32 or bf16.")
    batch_size: int = Field(256, ge=1, description="Images per batch.")
    root: str | Path | None = Field(None, description="Folder of torchvision's datasets.")
    download: bool = Field(False, description="Let torchvision download missing datasets.")
    device: str = Field(
        "auto", description="auto, cpu, cuda or mps.", json_schema_extra={"suggest": ["auto", "cpu", "cuda", "mps"]}
    )
