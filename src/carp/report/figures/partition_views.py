"""The same image in several random partitions: two of its views, and where student and teacher assign them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.report.figures.canvas import GREY, INK, RULE, STUDENT, TEACHER

_VIEWS = (("view 1, student (θ)", STUDENT), ("view 2, teacher (ξ)", TEACHER))


@dataclass(frozen=True)
class PartitionedImage:
    """An image, two of its views, and their assignments to the prototypes of one block of each partition."""

    views: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    """[S, S, 3] each: the first is the student's, the second the teacher's."""
    student: list[NDArray[np.float32]]
    """One distribution [N] per partition."""
    teacher: list[NDArray[np.float32]]

    def cosine(self, number: int) -> float:
        """Return how well student and teacher agree in one partition."""
        s, t = self.student[number], self.teacher[number]
        return float((s @ t) / max(np.linalg.norm(s) * np.linalg.norm(t), np.finfo(np.float32).tiny))


def draw_partitions(panel: Any, images: Sequence[PartitionedImage], titles: Sequence[str]) -> None:
    """Draw one row per image on a figure or a part of one: its views, then one panel per partition."""
    columns = len(titles)
    grid = panel.subplots(len(images), 2 + columns, squeeze=False, width_ratios=[1.15, 1.15, *[1.75] * columns])
    for row, image in enumerate(images):
        for axis, view, (title, colour) in zip(grid[row], image.views, _VIEWS, strict=False):
            _draw_view(axis, view, colour)
            if row == 0:
                axis.set_title(title, fontsize=9, color=colour)
        limit = max(float(shares.max()) for shares in (*image.student, *image.teacher))
        for number in range(columns):
            axis = grid[row][2 + number]
            _draw_assignments(axis, image, number, limit)
            if row == 0:
                axis.set_title(titles[number], fontsize=9, color=INK)
        grid[row][2].set_ylabel("assignment", fontsize=8, color=GREY)
    for axis, shares in zip(grid[-1][2:], images[-1].student, strict=True):
        axis.set_xlabel(f"the {len(shares):,} prototypes of the block", fontsize=8, color=GREY)


def _draw_view(axis: Any, view: NDArray[np.uint8], colour: str) -> None:
    axis.imshow(view, interpolation="nearest" if len(view) <= 64 else "antialiased")
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(edgecolor=colour, linewidth=2)


def _draw_assignments(axis: Any, image: PartitionedImage, number: int, limit: float) -> None:
    """Draw the student's assignment upwards and the teacher's downwards, on the scale of the row."""
    places = np.arange(len(image.student[number]))
    axis.vlines(places, 0, image.student[number], color=STUDENT, lw=1.4)
    axis.vlines(places, 0, -image.teacher[number], color=TEACHER, lw=1.4)
    axis.axhline(0, color=RULE, lw=0.8, zorder=0)
    axis.set(xticks=[], yticks=[-limit, 0, limit], ylim=(-1.3 * limit, 1.3 * limit), xlim=(-1, len(places)))
    axis.set_yticklabels([f"{limit:.2f}", "0", f"{limit:.2f}"] if number == 0 else [], fontsize=7, color=GREY)
    axis.tick_params(length=0)
    axis.spines[["top", "right", "bottom", "left"]].set_visible(False)
    text = f"cosine {image.cosine(number):.2f}"
    axis.text(0.99, 0.02, text, transform=axis.transAxes, ha="right", fontsize=7.5, color=GREY)
