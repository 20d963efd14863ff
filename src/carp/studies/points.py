"""The grid of a study: points, and jobs, which are points with a seed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """One value of what a study varies, in one variant.

    Attributes:
        value: As users write it and tables show it: `512`, `0.99->1`, `2+4`.
        variant: Such as `without teacher`; empty if the study has only one.
        settings: What the point changes in the settings of the study.
        place: Where the value stands among the others.
        published_as: The paper's value that this one corresponds to; mostly the value itself.
        cost: How long a job takes, relative to the other points, as far as it is known beforehand.
    """

    value: str
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: float = 0.0
    published_as: str = ""
    cost: float = 1.0

    @property
    def title(self) -> str:
        """The value and the variant."""
        return ", ".join(part for part in (self.value, self.variant) if part)


@dataclass(frozen=True)
class Job:
    """One point with one seed."""

    point: Point
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder: `512-without-teacher-seed0`."""
        words = (self.point.value, self.point.variant, f"seed{self.seed}")
        return "-".join(re.sub(r"[^\w.+]+", "-", word) for word in words if word)

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{self.point.title}, seed {self.seed}"


def all_jobs(points: Sequence[Point], seeds: Iterable[int]) -> list[Job]:
    """Every point with the first seed, then with the second one: an unfinished study has all points first."""
    return [Job(point, seed) for seed in seeds for point in points]
