"""The amount of work of an evaluation, to estimate its time before it runs. Imports without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes that determine the work of an evaluation."""

    train: int
    """Training images; for a search, the database."""
    test: int
    """Test images; for a search, the queries."""
    classes: int
    features: int
    """Length of the vectors."""
    pixels: int
    """Pixels per image after the evaluation transform."""
    several_labels: bool = False
    """Whether an image has several labels."""


@dataclass(frozen=True)
class Work:
    """The amount of computation."""

    pixels: float
    """Pixels that pass forwards through the encoder; a training step counts as three passes."""
    multiply_adds: float = 0.0
    """Multiply-adds outside the encoder."""
