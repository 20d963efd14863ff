"""Writes the page of one run, or of several side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carp.console.progress import Display
from carp.exploration.run_images import RunImages, confused
from carp.report.pages.charts import Chart, chart_scripts
from carp.report.pages.image_map import map_scripts
from carp.report.pages.template import write_page
from carp.report.run_page.curves import confusion_chart, run_charts
from carp.report.run_page.image_sections import ImageSections, Views
from carp.report.run_page.run_records import RunRecords, setting_differences


@dataclass(frozen=True)
class ReportedRun:
    """A run and what is known about it."""

    records: RunRecords
    images: RunImages | None
    """None if no images were given."""
    views: Sequence[Views] = ()
    figures: Sequence[tuple[str, str]] = ()
    """Titles and addresses of pictures that matplotlib drew."""


def write_run_page(path: Path, runs: Sequence[ReportedRun], notes: Sequence[str], display: Display) -> None:
    """Write the page; Plotly must be installed.

    Args:
        path: The file.
        runs: The runs; the first one sets the order of queries.
        notes: What is missing, and why.
        display: Shows the progress.
    """
    scripts = [*chart_scripts(), *map_scripts()]
    records = [run.records for run in runs]
    curves = run_charts(records)
    charts: dict[str, Chart] = {chart.key: chart for chart in curves}
    data: dict[str, Any] = {}
    columns = []
    for number, run in enumerate(runs):
        column: dict[str, Any] = {"records": run.records, "views": run.views, "figures": run.figures, "images": None}
        if run.images is not None:
            sections = ImageSections(run.images)
            data[f"map-{number}"] = sections.map(display)
            chart = _confusion(f"confusion-{number}", run.images)
            if chart is not None:
                charts[chart.key] = chart
            column["images"] = sections
            column["confusion"] = chart
            column["compared"] = run.images.compared
        columns.append(column)
    names = [run.records.name for run in runs]
    write_page(
        path,
        "report.html",
        title=f"Run {names[0]}" if len(runs) == 1 else f"Runs {', '.join(names)}",
        notes=notes,
        contents=_contents(columns, curves),
        data={"charts": {key: chart.as_data() for key, chart in charts.items()}, **data},
        scripts=scripts,
        evaluates=True,
        runs=columns,
        curves=curves,
        differences=setting_differences(records) if len(runs) > 1 else [],
    )


def _confusion(key: str, found: RunImages) -> Chart | None:
    if found.labels is None or found.predicted is None:
        return None
    return confusion_chart(key, confused(found.labels, found.predicted, len(found.classes)), found.classes)


def _contents(columns: Sequence[dict[str, Any]], curves: Sequence[Chart]) -> list[tuple[str, str]]:
    with_images = any(column["images"] for column in columns)
    labelled = any(column["images"] and column["images"].accuracies() for column in columns)
    sections = [
        ("diagnosis", "Diagnosis", any(column["records"].history for column in columns)),
        ("curves", "Curves", bool(curves)),
        ("map", "Map", with_images),
        ("neighbours", "Neighbours", with_images),
        ("classes", "Classes", labelled),
        ("prototypes", "Prototypes", with_images),
        ("outliers", "Outliers", with_images),
        ("views", "Views", any(column["views"] for column in columns)),
        ("figures", "Partitions", any(column["figures"] for column in columns)),
        ("settings", "Settings", True),
    ]
    return [(key, name) for key, name, present in sections if present]
