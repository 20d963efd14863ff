"""`carp report`: figures about a run."""

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
from carp.errors import ConfigError, DataError, UnreadableImageError
from carp.evaluation.result import read_result
from carp.features.extract import extract
from carp.files.atomic import is_unfinished
from carp.files.outputs import check_output_file, check_output_folder
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.rendered_views import render_views
from carp.images.loading.loader import normalise
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.images.sources.subset import at_random
from carp.report.figures.canvas import new_figure, save_figure
from carp.report.figures.certainty_curve import certainty_curve, draw_certainty
from carp.report.figures.epoch_curve import draw_epoch_curves, epoch_curves, size_of_curves
from carp.report.figures.partition_views import PartitionedImage, draw_partitions
from carp.report.figures.usage_curve import PrototypeUsage, draw_usage
from carp.runs.epoch_argument import at_epoch
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import INDEX, Run, open_run

_PARTITIONS = 4
_MOST_EPOCHS = 5  # drawn unless the user chooses others


@dataclass(frozen=True)
class Report:
    """What `report_run` wrote.

    Attributes:
        files: The figures by name: `certainty`, `usage`, `partitions`, `epochs`; one file if they were joined.
        notes: Which figures are missing, and why.
    """

    files: dict[str, Path]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Figure:
    """A figure that can be drawn alone or as part of another."""

    name: str
    size: tuple[float, float]  # inches
    draw: Callable[[Any], None]


def report_run(
    run: str | Path,
    data: Openable | None = None,
    *,
    out: str | Path | None = None,
    epoch: int | Sequence[int] | None = None,
    limit: int = 2000,
    images: int = 3,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Report:
    """Draw figures about a run: certainty of its assignments, use of its prototypes, images in random partitions.

    If several epochs were evaluated (`RUN@EPOCH`), student and teacher are also plotted over the epochs.

    Args:
        run: A run folder, or `RUN@25` for the run at the end of epoch 25.
        data: Any image source, for the figures `usage` and `partitions`; None leaves these out.
        out: A folder for one PNG per figure, or one .png file for all. None is the folder `report` of the run.
        epoch: Epochs whose use of the prototypes is compared; None is those that were kept, five at most.
        limit: Use at most this many images, chosen at random.
        images: The number of images that are drawn with their partitions, evenly spread over the data.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show no progress.

    Returns:
        The files, and what is missing.
    """
    for name, value in (("limit", limit), ("images", images)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, received {value}.")
    opened, display = open_run(run), Display(quiet=quiet)
    place = opened.folder / "report" if out is None else Path(out)
    joined = place.suffix.lower() == ".png"
    (check_output_file if joined else check_output_folder)(place)
    new_figure(1, 1)  # raises if matplotlib is not installed
    figures, notes = _from_records(opened)
    if data is None:
        notes.append("the figures usage and partitions were not drawn, because they need images (--data).")
    else:
        source = open_images(
            data, display, root=root or opened.config.root, download=download, index=opened.folder / INDEX
        )
        chosen = _epochs(opened, epoch)
        models = [at_epoch(opened.folder, number) for number in chosen] or [run]
        with pixel_limit(opened.config.max_image_pixels):
            figures.append(_usage(opened, models, source, limit, device, display))
            figures.append(_partitions(opened, models[-1], source, images, device))
    if not figures:
        raise DataError(f"there is nothing to draw for {opened.folder}: {' '.join(notes)}")
    return Report(_written(figures, place, joined=joined), tuple(notes))


def _written(figures: Sequence[_Figure], place: Path, *, joined: bool) -> dict[str, Path]:
    """Write one file per figure, or all of them into one."""
    if joined:
        save_figure(_page(figures), place)
        return {figure.name: place for figure in figures}
    for figure in figures:
        page = new_figure(*figure.size)
        figure.draw(page)
        save_figure(page, place / f"{figure.name}.png")
    return {figure.name: place / f"{figure.name}.png" for figure in figures}


def _page(figures: Sequence[_Figure]) -> Any:
    """Draw all figures on one page, in rows that are as wide as the widest figure."""
    width, rows = max(figure.size[0] for figure in figures), list[list[_Figure]]()
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


def _from_records(run: Run) -> tuple[list[_Figure], list[str]]:
    """Return the figures that need no images: from metrics.jsonl and from the results of several epochs."""
    figures, notes = list[_Figure](), list[str]()
    path = run.folder / "metrics.jsonl"
    metrics = read_metrics(path) if path.exists() else []
    curve = certainty_curve(metrics, steps_per_epoch=run.steps_per_epoch, block_size=run.config.block_size)
    if curve is None:
        notes.append(f"the figure certainty was not drawn, because {path} has no measurement of certainty.")
    else:
        figures.append(_Figure("certainty", (11, 4), lambda panel: draw_certainty(panel, curve)))
    results = [read_result(file) for file in sorted((run.folder / "results").glob("*.json")) if not is_unfinished(file)]
    curves = [curve for curve in epoch_curves(results) if len(curve.epochs) > 1]
    if curves:
        figures.append(_Figure("epochs", size_of_curves(curves), lambda panel: draw_epoch_curves(panel, curves)))
    return figures, notes


def _epochs(run: Run, given: int | Sequence[int] | None) -> list[int]:
    """Return the epochs to compare; empty for the newest checkpoint alone."""
    if given is not None:
        return [given] if isinstance(given, int) else list(given)
    if run.epoch is not None:
        return [run.epoch]
    kept = run.kept_epochs()
    places = np.linspace(0, len(kept) - 1, min(len(kept), _MOST_EPOCHS)).round().astype(int)
    return [kept[place] for place in places.tolist()]


def _usage(
    run: Run, models: Sequence[str | Path], source: Source, limit: int, device: str, display: Display
) -> _Figure:
    """Return how evenly the prototypes are used, at every epoch."""
    sample = at_random(source, limit, seed=run.config.seed)
    parts = partitions(run.config, run.config.seed, _PARTITIONS)
    usages = []
    with display.counting("embedding images", len(models)) as progress:
        for number, model in enumerate(models, 1):
            encoder = load(model, layer="projector", device=device)
            found = extract(
                encoder.module,
                sample,
                size=encoder.size,
                device=encoder.device,
                resize=encoder.resize,
                interpolation=encoder.interpolation,
            )
            shares = preferred_shares(found.features, encoder.prototypes, parts)
            choices = len(found.features) * len(parts)
            usages.append(PrototypeUsage(_label(encoder), shares, run.config.block_size, choices))
            progress(number, len(models))
    return _Figure("usage", (7.0, 4.2), lambda panel: draw_usage(panel, usages))


def _label(encoder: Encoder) -> str:
    return f"epoch {encoder.epochs if encoder.epoch is None else encoder.epoch}"


def _partitions(run: Run, model: str | Path, source: Source, count: int, device: str) -> _Figure:
    """Return a few images with the assignments of their views in several partitions."""
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
    return _Figure("partitions", size, lambda panel: draw_partitions(panel, drawn, titles))


def _blocks(run: Run) -> tuple[list[torch.Tensor], list[str]]:
    """Return one block of each of the first partitions, or the first blocks of a fixed one."""
    parts = partitions(run.config, run.config.seed, _PARTITIONS)
    if run.config.partition == "fixed":
        blocks = list(parts[0][:_PARTITIONS])
        return blocks, [f"fixed partition, block {number + 1}" for number in range(len(blocks))]
    return [part[0] for part in parts], [f"random partition {number + 1}, one block" for number in range(len(parts))]


@torch.no_grad()
def _embedded(encoder: Encoder, view: Any) -> Any:
    """Return the embedding [1, D] of a view, which needs no resizing."""
    pixels = torch.from_numpy(view).permute(2, 0, 1)[None]
    return encoder.module(normalise(pixels, encoder.device, channels_last=False)).cpu().numpy()
