"""The certainty of assignments during a run: they are sharpened by the loss alone, not by a temperature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carp.report.figures.canvas import BRANCHES, GREY, tidy


@dataclass(frozen=True)
class CertaintyCurve:
    """Measurements of a run, one per diagnosis."""

    epochs: list[float]
    largest: dict[str, list[float]]
    """Mean of the largest assignment in a block, by branch."""
    entropy: dict[str, list[float]]
    """Mean entropy of an assignment relative to ln N, by branch."""
    block_size: int


def certainty_curve(
    metrics: Sequence[Mapping[str, Any]], *, steps_per_epoch: int, block_size: int
) -> CertaintyCurve | None:
    """Collect the lines of metrics.jsonl that measured certainty; None if an older version wrote all of them."""
    lines = [line for line in metrics if line.get("certainty") is not None]
    if not lines:
        return None
    names = {"student": "", "teacher": "teacher_"}
    branches = {name: prefix for name, prefix in names.items() if lines[-1].get(f"{prefix}certainty") is not None}
    return CertaintyCurve(
        [(line["step"] + 1) / steps_per_epoch for line in lines],
        {name: [line[f"{prefix}certainty"] for line in lines] for name, prefix in branches.items()},
        {name: [line[f"{prefix}entropy"] for line in lines] for name, prefix in branches.items()},
        block_size,
    )


def draw_certainty(panel: Any, curve: CertaintyCurve) -> None:
    """Draw both measures on a figure or a part of one."""
    left, right = panel.subplots(1, 2)
    outcomes = max(2, curve.block_size)
    for axis, values in ((left, curve.largest), (right, curve.entropy)):
        for branch, numbers in values.items():
            label, colour, _ = BRANCHES[branch]
            style = "-" if branch == "student" else (0, (5, 1.2))
            axis.plot(curve.epochs, numbers, color=colour, ls=style, lw=1.8, label=label)
        top = max([1 / outcomes, *(number for numbers in values.values() for number in numbers)])
        axis.set(xlabel="epoch", ylim=(0, min(1.04, 1.3 * top)), xlim=(0, None))
        tidy(axis)
    left.axhline(1 / outcomes, color=GREY, ls=":", lw=1.2, label=f"uniform, 1/{outcomes:,}")
    right.axhline(1, color=GREY, ls=":", lw=1.2, label="uniform")
    left.set(title="Certainty: largest assignment in a block, mean", ylabel="probability")
    right.set(title=f"Entropy of an assignment, mean ($N_B$ = {curve.block_size:,})", ylabel="share of ln $N_B$")
    for axis in (left, right):
        axis.legend(fontsize=8, frameon=False)
