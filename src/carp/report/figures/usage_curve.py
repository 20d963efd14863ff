"""How evenly prototypes are used: the share of images that prefer each prototype in its block, sorted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.report.figures.canvas import FAINT, GREY, tidy


@dataclass(frozen=True)
class PrototypeUsage:
    """The use of all prototypes at one point of a run."""

    label: str
    shares: NDArray[np.float64]
    """Share of images that prefer the prototype in its block, [K]."""
    block_size: int
    choices: int
    """Images times partitions: how many choices a share is based on."""

    @property
    def relative(self) -> NDArray[np.float64]:
        """Shares relative to even use, largest first."""
        outcomes = max(2, self.block_size)
        return np.sort(self.shares)[::-1] * outcomes

    @property
    def used(self) -> float:
        """Share of prototypes that any image prefers."""
        return float((self.shares > 0).mean())

    @property
    def effective(self) -> float:
        """Number of evenly used prototypes with the same entropy, as a share of all."""
        p = self.shares / max(self.shares.sum(), np.finfo(np.float64).tiny)
        return float(np.exp(-(p[p > 0] * np.log(p[p > 0])).sum()) / len(p)) if p.any() else 0.0


def draw_usage(panel: Any, usages: Sequence[PrototypeUsage]) -> None:
    """Draw one sorted curve per point of the run on a figure or a part of one; the last one stands out."""
    from matplotlib import colormaps  # noqa: PLC0415 - optional

    axis = panel.subplots()
    last = usages[-1]
    place = 100 * (np.arange(len(last.shares)) + 0.5) / len(last.shares)
    axis.axhline(1, color=GREY, lw=1.1, ls=":", label="even use")
    axis.plot(place, _by_chance(last), color=FAINT, lw=1.6, ls="--", label="even use, sampled with as many images")
    shades = colormaps["viridis"](np.linspace(0.85, 0.1, len(usages)))
    for usage, shade in zip(usages, shades, strict=True):
        relative = usage.relative
        text = f"{usage.label}: {usage.used:.0%} used, effective number {usage.effective:.0%}"
        axis.plot(
            100 * (np.arange(len(relative)) + 0.5) / len(relative),
            np.where(relative > 0, relative, np.nan),
            color=shade,
            lw=2.2 if usage is last else 1.6,
            label=text,
        )
    axis.set(
        xlabel="prototypes from the most to the least used, %",
        ylabel="images that prefer it, relative to even use",
        title="Use of the prototypes in random blocks",
        yscale="log",
        xlim=(0, 100),
    )
    axis.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axis.legend(fontsize=8, frameon=False, loc="upper right")
    tidy(axis)


def _by_chance(usage: PrototypeUsage) -> NDArray[np.float64]:
    """Return the sorted curve of equally likely prototypes, for the same number of choices."""
    outcomes = max(2, usage.block_size)
    generator = np.random.Generator(np.random.PCG64(0))
    counts = generator.binomial(usage.choices, 1 / outcomes, size=len(usage.shares))
    relative = np.sort(counts)[::-1] * outcomes / usage.choices
    return np.where(relative > 0, relative, np.nan)
