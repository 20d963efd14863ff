"""`carp report`: a page about a run, or several runs side by side, and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from carp.console.progress import Display
from carp.errors import ConfigError, DataError, MissingExtraError
from carp.exploration.run_images import run_images
from carp.features.feature_options import FeatureOptions
from carp.files.outputs import check_output_file, check_output_folder
from carp.images.decoding.decode import pixel_limit
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.report.figures.run_figures import RunFigure, figure_address, run_figures, write_figures
from carp.report.pages.charts import plotly_code
from carp.report.pages.image_map import MOST_POINTS
from carp.report.run_page.assembly import ReportedRun, write_run_page
from carp.report.run_page.image_sections import sample_views
from carp.report.run_page.run_records import RunRecords
from carp.runs.run_folder import INDEX, Run, open_run

PAGE, COMPARISON = "report.html", "comparison.html"


@dataclass(frozen=True)
class Report:
    """What `report_run` wrote.

    Attributes:
        files: What was written, by name: `page`, and the figures `certainty`, `usage`, `partitions`, `epochs`; one file
            if the figures were joined.
        notes: What is missing, and why.
    """

    files: dict[str, Path]
    notes: tuple[str, ...]


def report_run(
    run: str | Path | Sequence[str | Path],
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
    """Write one self-contained HTML page about a run, or about several runs side by side, and figures as PNG.

    The page has the curves, the diagnosis and the settings; with images also their map, nearest neighbours before and
    after training, prototypes with their images, outliers, and confused classes where there are labels.

    Args:
        run: A run folder, or `RUN@25` for the run at the end of epoch 25; or several of these, for one page.
        data: Images to show, from any source; None leaves out the sections that need them.
        out: A folder for the page and one PNG per figure, one .html file for the page alone, or one .png file for all
            figures. None is the folder `report` of the (first) run. Several runs share one page, without figures.
        epoch: Epochs whose use of the prototypes is compared; None is those that were kept, five at most.
        limit: Embed at most this many images, chosen at random. If the features of all images are stored with the run,
            for example by `carp eval`, up to 20,000 of them are shown.
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
    given = [run] if isinstance(run, str | Path) else list(run)
    if not given:
        raise ConfigError("there is no run to report on: received an empty list. Give a run folder.")
    runs, display = [open_run(each) for each in given], Display(quiet=quiet)
    first, alone = runs[0], len(runs) == 1
    place = first.folder / "report" if out is None else Path(out)
    single = suffix if (suffix := place.suffix.lower()) in {".png", ".html"} else ""
    if not alone and (single == ".png" or epoch is not None):
        raise ConfigError(
            f"several runs are shown on one page, without figures, received {'--epoch' if epoch is not None else out}. "
            "Give one run, or --out FILE.html."
        )
    (check_output_file if single else check_output_folder)(place)
    notes = [] if data is not None else ["no images were given (--data): everything that shows images is missing."]
    page = None if single == ".png" else place if single else place / (PAGE if alone else COMPARISON)
    if page is not None and (problem := _without_plotly()) is not None:
        if single or not alone:
            raise problem
        notes.append(f"{PAGE} was not written: {problem}")
        page = None
    source = None
    if data is not None:
        where = root or first.config.root
        source = open_images(data, display, root=where, download=download, index=first.folder / INDEX)
    figures, files = list[RunFigure](), dict[str, Path]()
    with pixel_limit(first.config.max_image_pixels):
        if alone and single != ".html":
            figures, missing = run_figures(
                first, source, epoch=epoch, limit=limit, images=images, device=device, display=display
            )
            notes += missing
        if page is not None:
            options = FeatureOptions(device=device)
            reported = [_reported(each, source, figures, limit, options, display) for each in runs]
            write_run_page(page, reported, notes, display)
            files["page"] = page
    if figures:
        files |= write_figures(figures, place, joined=single == ".png")
    if not files:
        raise DataError(f"there is nothing to draw for {first.folder}: {' '.join(notes)}")
    return Report(files, tuple(notes))


def _without_plotly() -> MissingExtraError | None:
    try:
        plotly_code()
    except MissingExtraError as error:
        return error
    return None


def _reported(
    run: Run,
    source: Source | None,
    figures: Sequence[RunFigure],
    limit: int,
    options: FeatureOptions,
    display: Display,
) -> ReportedRun:
    """What the page shows of one run."""
    records = RunRecords(run)
    if source is None:
        return ReportedRun(records, None)
    found = run_images(run, source, limit=limit, points=MOST_POINTS, options=options, display=display)
    title = "Two views of an image, and where student and teacher assign them in blocks of several partitions."
    drawn = [(title, figure_address(figure)) for figure in figures if figure.name == "partitions"]
    return ReportedRun(records, found, sample_views(run, source), drawn)
