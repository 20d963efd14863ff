"""Compares a study with the paper: the order of the values, the best and the worst, and the noise over seeds."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from carp.console.quantities import counted
from carp.studies.study import Mean, Study, StudyRow, pooled_deviation

_FEWEST = 3  # values whose order can be compared
_ERRORS = 2.0  # standard errors of a difference that the seeds alone may make

_End = Callable[..., tuple[str, Mean, float]]  # max or min


def agreement_lines(study: Study) -> list[str]:
    """Return lines of text: the noise, then the order of each variant, then the order of the variants."""
    lines = [noise_line(study)]
    if study.published is None:
        lines.append(f"the paper has no values for {study.name}: nothing is compared.")
        return lines
    for variant in study.variants:
        for branch in dict.fromkeys(s.branch for s in study.published.series if s.variant == variant):
            lines.append(_order_line(study, variant, branch))
    if len(study.variants) == 2:
        lines += _between_variants(study, *study.variants)
    return lines


def noise_line(study: Study) -> str:
    """Describe how much the seeds differ, and how much the values do."""
    means = [mean.mean for row in study.rows if (mean := row.branch(""))]
    spread = f"; the means differ by up to {max(means) - min(means):.1f} points" if len(means) > 1 else ""
    pooled = pooled_deviation(study.rows)
    if pooled is None:
        return f"one seed: noise unknown{spread}."
    deviation, freedom = pooled
    degrees = f"{freedom} degree{'s' if freedom != 1 else ''} of freedom"
    return f"noise: standard deviation over seeds {deviation:.2f} points (pooled, {degrees}){spread}."


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation with mean ranks for ties; None if one side is constant."""
    a, b = _ranks(ours), _ranks(theirs)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale else None


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.array([(array < x).sum() + ((array == x).sum() - 1) / 2 for x in array], dtype=np.float64)


def _order_line(study: Study, variant: str, branch: str) -> str:
    compared = [
        (row.point.value, mean, study.published_for(row.point)[branch])
        for row in study.of_variant(variant)
        if (mean := row.branch(branch)) and branch in study.published_for(row.point)
    ]
    what = ", ".join(part for part in (variant, branch) if part)
    start = f"order{f' ({what})' if what else ''}: "
    if len(compared) < _FEWEST:
        return f"{start}{counted(len(compared), 'value')} in common with the paper, too few to compare."
    correlation = spearman([mean.mean for _, mean, _ in compared], [theirs for _, _, theirs in compared])
    rank = "undefined, as all values are equal" if correlation is None else f"{correlation:+.2f}"
    pooled = pooled_deviation(study.rows, branch)
    noise = None if pooled is None else pooled[0]
    best, worst = (_compare_ends(compared, end, noise) for end in (max, min))
    return (
        f"{start}Spearman's rank correlation with the paper is {rank} over {len(compared)} values; best value {best}, "
        f"worst value {worst}."
    )


def _compare_ends(compared: Sequence[tuple[str, Mean, float]], end: _End, noise: float | None) -> str:
    """Return whether the best (or worst) value is the paper's and, if not, whether the seeds could explain it."""
    ours, mean, _ = end(compared, key=lambda one: one[1].mean)
    theirs, other, _ = end(compared, key=lambda one: one[2])
    if ours == theirs:
        return f"agrees ({ours})"
    gap = abs(mean.mean - other.mean)
    within = noise is not None and gap <= _ERRORS * noise * math.sqrt(1 / mean.count + 1 / other.count)
    return f"differs ({ours}, the paper: {theirs}; here {gap:.1f} points apart{', within the noise' if within else ''})"


def _between_variants(study: Study, first: str, second: str) -> list[str]:
    """Count the values for which the first variant is better than the second one, here and in the paper."""
    ours = theirs = count = 0
    seconds: dict[str, StudyRow] = {row.point.value: row for row in study.of_variant(second)}
    for row in study.of_variant(first):
        other = seconds.get(row.point.value)
        if other is None:
            continue
        a, b = row.branch(""), other.branch("")
        x, y = study.published_for(row.point).get(""), study.published_for(other.point).get("")
        if a and b and x is not None and y is not None:
            count += 1
            ours += a.mean > b.mean
            theirs += x > y
    if not count:
        return []
    return [f"{first} is better than {second} for {ours} of {counted(count, 'value')}; in the paper, for {theirs}."]
