"""The types of settings: numbers with bounds, ranges, and values that change over a run."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_IMAGE_PIXELS = 200_000_000  # the largest sensors; 600 MB once decoded
SMALL_IMAGE = 64  # up to this side: a small stem, images held in memory, views rendered one batch at a time

IMAGENET_MEAN: tuple[float, float, float] = (0.485, 0.456, 0.406)
IMAGENET_STD: tuple[float, float, float] = (0.229, 0.224, 0.225)

# Bounds far beyond any useful value, so that a typing mistake is caught before it causes an overflow
MOST_STEPS = 1_000_000_000
MOST_EPOCHS = 1_000_000
LARGEST_FACTOR = 1e6
MOST_MINUTES = 1e6  # about two years
LARGEST_SIDE = 1_000_000
LARGEST_WIDTH = 1_000_000
LARGEST_BATCH = 1 << 24
MOST_PROTOTYPES = 10**12


class Settings(BaseModel):
    """Base class of every part of the configuration: immutable, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


@dataclass(frozen=True)
class Form:
    """How a setting that holds several numbers is written, for error messages."""

    words: str


def _start_and_end(value: object) -> object:
    """Read a single number as a constant schedule (YAML 1.1 reads 1e-3 as text)."""
    return (value, value) if isinstance(value, int | float | str) else value


Probability = Annotated[float, Field(ge=0, le=1)]
PerView = Annotated[tuple[Probability, Probability, Probability], Form("[first global, second global, local view]")]
Fraction = Annotated[float, Field(gt=0, le=1)]
Range = Annotated[tuple[Fraction, Fraction], Form("[low, high]")]

PositiveFactor = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
_SCHEDULE = Form("one number or [start, end]")
Schedule = Annotated[tuple[NonNegative, NonNegative], BeforeValidator(_start_and_end), _SCHEDULE]
MomentumSchedule = Annotated[tuple[Probability, Probability], BeforeValidator(_start_and_end), _SCHEDULE]
_COLOURS = Form("three numbers, [red, green, blue]")
Mean = Annotated[tuple[Probability, Probability, Probability], _COLOURS]
Deviation = Annotated[tuple[PositiveFactor, PositiveFactor, PositiveFactor], _COLOURS]
