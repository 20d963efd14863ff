"""How much work an evaluation is, so that its time can be estimated before it runs. Imports without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """What the work of an evaluation depends on."""

    train: int
    """Training images; for a search, the database."""
    test: int
    """Test images; for a search, the queries."""
    classes: int
    features: int
    """Length of the vectors."""
    pixels: int
    """Of an image with the transform for evaluation."""
    several_labels: bool = False
    """Whether an image has several labels."""


@dataclass(frozen=True)
class Work:
    """What an evaluation computes."""

    pixels: float
    """That pass through the encoder forwards; a step of training counts as three passes."""
    multiply_adds: float = 0.0
    """Outside the encoder."""
