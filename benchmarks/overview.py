"""Draw the picture in the README from a finished demo: what training does, and what it changes.

    make demo
    python -m benchmarks.overview runs/demo --out docs/images/overview.png

Left: two views of a test image, and their assignments to prototypes in four blocks of one random partition. The student
sees one view, the teacher the other. Right: the nearest training images of one test image from each of five classes, by
the features of the untrained encoder and of the teacher. The test images are the first of their classes.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

import carp
from carp.images.sources.embedded import SIDE, shapes
from carp.images.views.batch_views import batch_views
from carp.images.views.view_parameters import view_kinds
from carp.model.branch import Branch
from carp.runs.run_folder import open_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = ("lattice", "bricks", "rings", "zigzag", "triangles")
NEIGHBOURS = 4
BLOCKS = 4  # drawn, of the partition's

WIDTH, HEIGHT, DPI = 2000, 750, 200
TOP, BOTTOM, CAPTION = 150, 686, 728  # of the images, and the base line of the text below them
VIEWS, BARS, BARS_WIDTH, BAR, QUERIES = 260, 480, 390, 3, 940
INK, FAINT, RULE = "#22242a", "#6b7280", "#d5d8de"
STUDENT, TEACHER, SAME_CLASS = "#2563b0", "#d9730d", "#23964f"

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Assignments:
    """Two views of every test image [M, H, W, 3], and their assignments in the blocks of one partition [M, P, N]."""

    views: tuple[Image, Image]
    student_MPN: NDArray[np.float32]
    teacher_MPN: NDArray[np.float32]

    def median_cosine(self, shift: int = 0) -> float:
        """How well student and teacher agree on views of the same image, or of images `shift` places apart."""
        s_MPN, t_MPN = self.student_MPN, np.roll(self.teacher_MPN, shift, axis=0)
        norms_MP = np.linalg.norm(s_MPN, axis=-1) * np.linalg.norm(t_MPN, axis=-1)
        return float(np.median((s_MPN * t_MPN).sum(axis=-1) / norms_MP))


@dataclass(frozen=True)
class Neighbours:
    """The nearest training images [queries, NEIGHBOURS] of each query, and how many are of the query's class."""

    chosen: NDArray[np.int64]
    precision: float  # over all test images


def assign(folder: Path) -> Assignments:
    """Assign two views of every test image as a training step does, in the blocks of one random partition."""
    config, images = open_run(folder).config, shapes("test").images
    drawn = batch_views(
        images.copy(), view_kinds(config), seed=config.seed, epoch=0, indices=np.arange(len(images), dtype=np.int64)
    )
    first, second = ((255 * view).round().byte().permute(0, 2, 3, 1).numpy() for view in drawn[:2])
    partition_PN = carp.random_partition(
        config.num_prototypes, config.block_size, generator=torch.Generator().manual_seed(config.seed)
    )
    assigned = []
    for name, view in (("student", first), ("teacher", second)):
        encoder = carp.load(folder, name, layer="projector", device="cpu")
        assert isinstance(encoder.module, Branch)
        logits_MK = torch.from_numpy(encoder.embed(view)) @ encoder.module.assigner().detach().T
        assigned.append(logits_MK[:, partition_PN].softmax(dim=-1).numpy())
    return Assignments((first, second), *assigned)


def neighbours(folder: Path, branch: str, queries: list[int]) -> Neighbours:
    """Find the nearest training images by cosine similarity."""
    encoder, train, test = carp.load(folder, branch, device="cpu"), shapes("train"), shapes("test")
    bank, asked = (encoder.embed(part.images.copy()) for part in (train, test))
    bank, asked = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, asked))
    nearest = np.argsort(-(asked @ bank.T), axis=1, kind="stable")[:, :NEIGHBOURS]
    same = train.labels[nearest] == test.labels[:, None]
    return Neighbours(nearest[queries], float(same.mean()))


def draw_image(axes: "Axes", pixels: Image, left: float, top: float, zoom: int, colour: str, line: float) -> None:
    """Draw an image at whole multiples of its pixels, in a frame."""
    from matplotlib.patches import Rectangle

    side = SIDE * zoom
    axes.imshow(pixels, extent=(left, left + side, top + side, top), interpolation="nearest", zorder=2)
    around = line / 2
    axes.add_patch(
        Rectangle(
            (left - around, top - around), side + line, side + line,
            fill=False, edgecolor=colour, linewidth=line * 72 / DPI, zorder=3,
        )
    )  # fmt: skip


def draw_assignments(axes: "Axes", shown: Assignments, index: int) -> None:
    """Draw one image, its views, and their assignments as bars: student up, teacher down."""
    zoom, left = 5, 40
    side = SIDE * zoom
    lower = BOTTOM - side
    middle = (TOP + lower) / 2
    draw_image(axes, shapes("test").images[index], left, middle, zoom, RULE, 3)
    write(axes, left + side / 2, middle + side + 34, "image", INK)
    for view, (place, colour, name) in enumerate(((TOP, STUDENT, "student"), (lower, TEACHER, "teacher"))):
        draw_image(axes, shown.views[view][index], VIEWS, place, zoom, colour, 5)
        axes.annotate(
            "", xy=(VIEWS - 12, place + side / 2), xytext=(left + side + 12, middle + side / 2),
            arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.0, "mutation_scale": 8},
        )  # fmt: skip
        label = TOP - 18 if view == 0 else CAPTION
        write(axes, VIEWS + side / 2, label, f"view {view + 1}: {name}", colour)
    step = (BOTTOM - TOP) / BLOCKS
    for block in range(BLOCKS):
        base = TOP + (block + 0.5) * step
        draw_block(axes, shown.student_MPN[index, block], shown.teacher_MPN[index, block], base, step / 2 - 6)
    write(axes, BARS + BARS_WIDTH / 2, TOP - 18, f"assignment in {BLOCKS} random blocks", INK)
    write(axes, BARS + BARS_WIDTH / 2, CAPTION, f"median cosine {shown.median_cosine():.2f}", FAINT)


def draw_block(
    axes: "Axes", student_N: NDArray[np.float32], teacher_N: NDArray[np.float32], base: float, height: float
) -> None:
    """Draw the assignments in one block, the larger one at full height."""
    pitch = BARS_WIDTH / len(student_N)
    centres = BARS + pitch * (np.arange(len(student_N)) + 0.5)
    scale = height / max(student_N.max(), teacher_N.max())
    axes.bar(centres, -scale * student_N, BAR, bottom=base - 1, color=STUDENT, zorder=2)
    axes.bar(centres, scale * teacher_N, BAR, bottom=base + 1, color=TEACHER, zorder=2)
    axes.plot([BARS, BARS + BARS_WIDTH], [base, base], color=RULE, linewidth=0.8, zorder=1)


def draw_neighbours(axes: "Axes", queries: list[int], groups: list[tuple[str, Neighbours]]) -> None:
    """Draw one row per query: the query, then its neighbours before and after training."""
    train, test = shapes("train"), shapes("test")
    zoom, gap = 3, 14
    side = SIDE * zoom
    step = side + gap
    write(axes, QUERIES + side / 2, TOP - 18, "query", INK)
    for row, query in enumerate(queries):
        draw_image(axes, test.images[query], QUERIES, TOP + row * step, zoom, RULE, 3)
    for number, (title, found) in enumerate(groups):
        left = QUERIES + step + 26 + number * (NEIGHBOURS * step + 28)
        centre = left + (NEIGHBOURS * step - gap) / 2
        write(axes, centre, TOP - 18, title, INK)
        write(axes, centre, CAPTION, f"{found.precision:.0%} in the query's class", FAINT)
        for row, query in enumerate(queries):
            for column, index in enumerate(found.chosen[row]):
                colour, line = (SAME_CLASS, 5) if train.labels[index] == test.labels[query] else (RULE, 3)
                draw_image(axes, train.images[index], left + column * step, TOP + row * step, zoom, colour, line)


def write(axes: "Axes", x: float, y: float, text: str, colour: str) -> None:
    """Write a centred label."""
    axes.text(x, y, text, color=colour, size=8.5, ha="center")


def main() -> None:
    """Compute everything from the run, then draw it."""
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of `make demo`")
    parser.add_argument("--out", type=Path, default=Path("docs/images/overview.png"))
    arguments = parser.parse_args()

    test = shapes("test")
    queries = [int(np.flatnonzero(test.labels == test.classes.index(name))[0]) for name in CLASSES]
    groups = [
        ("before training", neighbours(arguments.run, "untrained", queries)),
        ("after training", neighbours(arguments.run, "teacher", queries)),
    ]
    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.text(40, 62, "Two views, the same prototypes", color=INK, size=12, weight="bold")
    axes.text(QUERIES, 62, "Nearest neighbours", color=INK, size=12, weight="bold")
    assigned = assign(arguments.run)
    draw_assignments(axes, assigned, queries[0])
    draw_neighbours(axes, queries, groups)
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0), aspect="auto")
    figure.savefig(arguments.out, dpi=DPI)
    print(f"median cosine of assignments: {assigned.median_cosine():.2f} for two views of one image,")
    print(f"{assigned.median_cosine(shift=1):.2f} for views of different images")


if __name__ == "__main__":
    main()
