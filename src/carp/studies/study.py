"""Summarises the finished jobs of a study: means and deviations over seeds, next to the published values."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from carp.studies.job_result import JobResult
from carp.studies.points import Point
from carp.studies.published import Published

BRANCHES = ("student", "teacher")


@dataclass(frozen=True)
class Mean:
    """The mean over seeds in percent, its standard deviation (n − 1; None for one seed), and the number of seeds."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, shares: Iterable[float | None]) -> Self | None:
        """Return the mean of shares between 0 and 1, one per seed; those that are None are left out."""
        found = [100 * share for share in shares if share is not None]
        if not found:
            return None
        return cls(statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


@dataclass(frozen=True)
class StudyRow:
    """One point with the results of its seeds."""

    point: Point
    results: tuple[JobResult, ...]

    def branch(self, name: str) -> Mean | None:
        """Return the accuracy of a branch; without a name, the teacher's, or the student's if there is no teacher.

        A run that diverged has no accuracy and is left out of the mean.
        """
        return Mean.of(result.accuracies.get(name) if name else result.accuracy for result in self.results)

    @property
    def kl_to_uniform(self) -> float | None:
        """Its mean over seeds."""
        found = [result.kl_to_uniform for result in self.results if result.kl_to_uniform is not None]
        return statistics.mean(found) if found else None

    @property
    def kl_share(self) -> float | None:
        """`kl_to_uniform` in percent of its limit: 100 if one prototype of each block takes all images."""
        kl, limit = self.kl_to_uniform, self.results[0].kl_limit
        return None if kl is None or not limit else 100 * kl / limit

    @property
    def seconds(self) -> float | None:
        """The mean time of a job."""
        found = [result.seconds for result in self.results if result.seconds is not None]
        return statistics.mean(found) if found else None

    @property
    def verdict(self) -> str:
        """The verdicts, each with its number if they differ."""
        counts = Counter(result.verdict for result in self.results)
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{verdict} ({count})" for verdict, count in counts.most_common())


@dataclass(frozen=True)
class Study:
    """The finished jobs of a study, as a table.

    Attributes:
        name: The subject, such as `block-size`.
        title: Its heading.
        axis: The meaning of the values.
        scale: The scale of the axis in plots: `log`, `linear` or `category`.
        folder: The folder of its jobs.
        rows: The rows by variant, then by value.
        published: The paper's values; None if the paper has none.
        missing: Requested jobs without a result.
        notes: Values that were left out, and why.
        seconds_left: How long the missing jobs take, one after the other; None if no finished job has a time.
    """

    name: str
    title: str
    axis: str
    scale: str
    folder: Path
    rows: tuple[StudyRow, ...]
    published: Published | None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds_left: float | None = None

    def __repr__(self) -> str:
        done = sum(len(row.results) for row in self.rows)
        return f"Study('{self.folder}', {done} jobs done, {len(self.missing)} missing, {len(self.rows)} rows)"

    @property
    def variants(self) -> list[str]:
        """The variants in the order of the rows."""
        return list(dict.fromkeys(row.point.variant for row in self.rows))

    def of_variant(self, variant: str) -> list[StudyRow]:
        """Return the rows of a variant, in the order of the values."""
        return [row for row in self.rows if row.point.variant == variant]

    def published_for(self, point: Point) -> dict[str, float]:
        """Return the paper's numbers for a point, by branch; the branch is empty where the paper shows only one."""
        series = () if self.published is None else self.published.series
        return {
            one.branch: one.values[point.published_as]
            for one in series
            if one.variant == point.variant and point.published_as in one.values
        }


def rows_of(results: Sequence[JobResult], variants: Sequence[str]) -> tuple[StudyRow, ...]:
    """Return one row per point, in the order of the variants and of the values."""
    points: dict[str, list[JobResult]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        points.setdefault(result.point.title, []).append(result)
    rows = [StudyRow(found[0].point, tuple(found)) for found in points.values()]
    order = {variant: number for number, variant in enumerate(variants)}
    return tuple(sorted(rows, key=lambda row: (order.get(row.point.variant, len(order)), row.point.place)))


def pooled_deviation(rows: Sequence[StudyRow], branch: str = "") -> tuple[float, int] | None:
    """Return the standard deviation over seeds in percent, pooled over the points, and its degrees of freedom.

    None if every point has a single seed.
    """
    means = [mean for row in rows if (mean := row.branch(branch)) and mean.deviation is not None]
    freedom = sum(mean.count - 1 for mean in means)
    if not freedom:
        return None
    return math.sqrt(sum((m.count - 1) * (m.deviation or 0.0) ** 2 for m in means) / freedom), freedom
