"""The grid of a study: points, and jobs, which are points with a seed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """One value of what a study varies, in one variant.

    Attributes:
        value: The value as it is written and shown in tables: `512`, `0.99->1`, `2+4`.
        variant: The variant, such as `without teacher`; empty if the study has only one.
        settings: The settings that the point changes.
        place: The position of the value among the others.
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
        """The name in messages."""
        return f"{self.point.title}, seed {self.seed}"


def all_jobs(points: Sequence[Point], seeds: Iterable[int]) -> list[Job]:
    """Return every point with the first seed, then with the second, so that an unfinished study covers all points."""
    return [Job(point, seed) for seed in seeds for point in points]
