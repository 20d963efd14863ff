"""The figures about a run as PNG files: certainty, use of prototypes, images in partitions, results by epoch."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carp.console.progress import Display
from carp.encoders.assignments import assign, partitions, preferred_shares
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import load
from carp.errors import UnreadableImageError
from carp.evaluation.result import read_result
from carp.features.extract import extract
from carp.files.atomic import is_unfinished
from carp.images.inspect.rendered_views import render_views
from carp.images.loading.loader import normalise
from carp.images.source import Source
from carp.images.sources.subset import at_random
from carp.report.figures.canvas import new_figure, save_figure
from carp.report.figures.certainty_curve import certainty_curve, draw_certainty
from carp.report.figures.epoch_curve import draw_epoch_curves, epoch_curves, size_of_curves
from carp.report.figures.partition_views import PartitionedImage, draw_partitions
from carp.report.figures.usage_curve import PrototypeUsage, draw_usage
from carp.runs.epoch_argument import at_epoch
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import Run

_PARTITIONS = 4
_MOST_EPOCHS = 5  # that are drawn unless you choose


@dataclass(frozen=True)
class RunFigure:
    """A figure that can be drawn alone or as part of another."""

    name: str
    size: tuple[float, float]  # inches
    draw: Callable[[Any], None]


def run_figures(
    run: Run,
    source: Source | None,
    *,
    epoch: int | Sequence[int] | None,
    limit: int,
    images: int,
    device: str,
    display: Display,
) -> tuple[list[RunFigure], list[str]]:
    """All figures that the records and the images allow, and notes about those that are missing.

    Args:
        run: The run.
        source: Images, for the use of the prototypes and the partitions.
        epoch: Epochs whose use of the prototypes is compared; None is those that were kept.
        limit: Use at most this many images.
        images: The number of images that are drawn with their partitions.
        device: Where to run the encoder.
        display: Shows the progress.
    """
    new_figure(1, 1)  # is matplotlib installed?
    figures, notes = _of_records(run)
    if source is not None:
        models = _models(run, epoch)
        figures.append(_usage(run, models, source, limit, device, display))
        figures.append(_partitions(run, models[-1], source, images, device))
    return figures, notes


def write_figures(figures: Sequence[RunFigure], place: Path, *, joined: bool) -> dict[str, Path]:
    """Write one file per figure, or all of them into one."""
    if joined:
        save_figure(_page(figures), place)
        return {figure.name: place for figure in figures}
    for figure in figures:
        page = new_figure(*figure.size)
        figure.draw(page)
        save_figure(page, place / f"{figure.name}.png")
    return {figure.name: place / f"{figure.name}.png" for figure in figures}


def _page(figures: Sequence[RunFigure]) -> Any:
    """Draw all figures on one page, in rows that are as wide as the widest figure."""
    width, rows = max(figure.size[0] for figure in figures), list[list[RunFigure]]()
    for figure in figures:
        if rows and sum(other.size[0] for other in rows[-1]) + figure.size[0] <= width:
            rows[-1].append(figure)
        else:
            rows.append([figure])
    heights = [max(figure.size[1] for figure in row) for row in rows]
    page = new_figure(width, sum(heights))
    for row, part in zip(rows, page.subfigures(len(rows), 1, height_ratios=heights, squeeze=False).flat, strict=True):
        widths = [figure.size[0] for figure in row]
        for figure, panel in zip(
            row, part.subfigures(1, len(row), width_ratios=widths, squeeze=False).flat, strict=True
        ):
            figure.draw(panel)
    return page


def _of_records(run: Run) -> tuple[list[RunFigure], list[str]]:
    """The figures that need no images: from metrics.jsonl and from the results of several epochs."""
    figures, notes = list[RunFigure](), list[str]()
    path = run.folder / "metrics.jsonl"
    metrics = read_metrics(path) if path.exists() else []
    curve = certainty_curve(metrics, steps_per_epoch=run.steps_per_epoch, block_size=run.config.block_size)
    if curve is None:
        notes.append(f"{path} has no measurement of certainty: the figure certainty is missing.")
    else:
        figures.append(RunFigure("certainty", (11, 4), lambda panel: draw_certainty(panel, curve)))
    results = [read_result(file) for file in sorted((run.folder / "results").glob("*.json")) if not is_unfinished(file)]
    curves = [curve for curve in epoch_curves(results) if len(curve.epochs) > 1]
    if curves:
        figures.append(RunFigure("epochs", size_of_curves(curves), lambda panel: draw_epoch_curves(panel, curves)))
    return figures, notes


def _models(run: Run, given: int | Sequence[int] | None) -> list[str | Path]:
    """The run at the epochs to compare: those given, or those that were kept, five at most, or its newest state."""
    if given is not None:
        chosen = [given] if isinstance(given, int) else list(given)
    elif run.epoch is not None:
        chosen = [run.epoch]
    else:
        kept = run.kept_epochs()
        places = np.linspace(0, len(kept) - 1, min(len(kept), _MOST_EPOCHS)).round().astype(int)
        chosen = [kept[place] for place in places.tolist()]
    return [at_epoch(run.folder, number) or run.folder for number in chosen] or [run.folder]


def figure_address(figure: RunFigure) -> str:
    """A figure as a PNG inside its address, for a page."""
    page, file = new_figure(*figure.size), io.BytesIO()
    figure.draw(page)
    page.savefig(file, dpi=96, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _usage(
    run: Run, models: Sequence[str | Path], source: Source, limit: int, device: str, display: Display
) -> RunFigure:
    """How evenly the prototypes are used, at every epoch."""
    sample = at_random(source, limit, seed=run.config.seed)
    parts = partitions(run.config, run.config.seed, _PARTITIONS)
    usages = []
    with display.counting("embedding images", len(models)) as progress:
        for number, model in enumerate(models, 1):
            encoder = load(model, layer="projector", device=device)
            found = extract(encoder.module, sample, size=encoder.size, device=encoder.device, resize=encoder.resize)
            shares = preferred_shares(found.features, encoder.prototypes, parts)
            choices = len(found.features) * len(parts)
            usages.append(PrototypeUsage(_label(encoder), shares, run.config.block_size, choices))
            progress(number, len(models))
    return RunFigure("usage", (7.0, 4.2), lambda panel: draw_usage(panel, usages))


def _label(encoder: Encoder) -> str:
    return f"epoch {encoder.epochs if encoder.epoch is None else encoder.epoch}"


def _partitions(run: Run, model: str | Path, source: Source, count: int, device: str) -> RunFigure:
    """A few images: what the student makes of one view and the teacher of the other, in several partitions."""
    student, teacher = (load(model, branch, layer="projector", device=device) for branch in ("student", "teacher"))
    blocks, titles = _blocks(run)
    drawn, unreadable = list[PartitionedImage](), list[UnreadableImageError]()
    for index in map(int, np.unique(np.linspace(0, len(source) - 1, count).round().astype(int))):
        try:
            views = render_views(source, index, run.config, epoch=0).views[:2]
        except UnreadableImageError as error:
            unreadable.append(error)
            continue
        z_1D, w_1D = (_embedded(branch, view) for branch, view in zip((student, teacher), views, strict=True))
        s, t = (
            [assign(x_1D, branch.prototypes, block)[0] for block in blocks]
            for x_1D, branch in ((z_1D, student), (w_1D, teacher))
        )
        drawn.append(PartitionedImage((views[0], views[1]), s, t))
    if not drawn:
        raise unreadable[0]
    size = (3.4 + 2.3 * len(titles), 0.5 + 1.55 * len(drawn))
    return RunFigure("partitions", size, lambda panel: draw_partitions(panel, drawn, titles))


def _blocks(run: Run) -> tuple[list[torch.Tensor], list[str]]:
    """One block of each of the first partitions, or the first blocks of a fixed one."""
    parts = partitions(run.config, run.config.seed, _PARTITIONS)
    if run.config.partition == "fixed":
        blocks = list(parts[0][:_PARTITIONS])
        return blocks, [f"fixed partition, block {number + 1}" for number in range(len(blocks))]
    return [part[0] for part in parts], [f"random partition {number + 1}, one block" for number in range(len(parts))]


@torch.no_grad()
def _embedded(encoder: Encoder, view: Any) -> Any:
    """The embedding [1, D] of a view, which needs no resizing."""
    pixels = torch.from_numpy(view).permute(2, 0, 1)[None]
    return encoder.module(normalise(pixels, encoder.device, channels_last=False)).cpu().numpy()
