"""The page of `carp cluster`: a contact sheet per cluster, a map, the images that fit no cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carp.console.progress import Display
from carp.errors import MissingExtraError
from carp.exploration.cluster_count import ClusterCount
from carp.exploration.clusters import Clusters
from carp.exploration.layout import lay_out, spread_rows
from carp.features.extract import Features
from carp.features.stored_images import StoredImages
from carp.report.pages.charts import Chart, Line, chart_scripts
from carp.report.pages.image_map import THUMBNAIL, Classes, Scale, map_data, map_scripts
from carp.report.pages.template import Fact, ShownPicture, asset, shown_picture, write_page
from carp.report.pages.thumbnails import Picture, thumbnail_of

_SIDE = 112
_PICTURES = 3000  # on a page
_MOST, _FEWEST, _DOUBTFUL, _OUTLIERS = 11, 4, 4, 22
_MOST_CLUSTERS = 400
_MAP = 5000  # images


@dataclass(frozen=True)
class ClusteredImages:
    """What the page shows; rows are those of the feature store."""

    name: str
    clusters: Clusters
    titles: Sequence[str]
    """What every cluster is called."""
    places: Sequence[str]
    images: StoredImages
    features: Features
    labels: NDArray[np.int64] | None
    classes: Sequence[str]
    count: ClusterCount | None
    """How the number of clusters was chosen; None if it was given."""


@dataclass(frozen=True)
class _Card:
    """A cluster on the page."""

    number: int
    title: str
    size: int
    tightness: float
    certainty: float
    typical: list[ShownPicture]
    doubtful: list[ShownPicture]


def write_clusters_page(path: Path, found: ClusteredImages, notes: Sequence[str], display: Display) -> None:
    """Write the page; without Plotly it has neither a map nor a chart."""
    clusters = found.clusters
    draw = _Drawing(found)
    shown = min(len(clusters), _MOST_CLUSTERS)
    each = int(np.clip(_PICTURES // max(1, shown) - _DOUBTFUL, _FEWEST, _MOST))
    certainty = np.bincount(clusters.own, weights=clusters.certainty) / clusters.sizes
    cards = [
        _Card(
            number=number,
            title=found.titles[number],
            size=int(clusters.sizes[number]),
            tightness=float(clusters.tightness[number]),
            certainty=float(certainty[number]),
            typical=[draw(row, f"{clusters.similarity[row]:.2f}") for row in clusters.typical(number, each)],
            doubtful=[draw(row, f"{clusters.certainty[row]:.2f}") for row in clusters.doubtful(number, _DOUBTFUL)],
        )
        for number in range(shown)
    ]
    charts = [] if found.count is None else [_criterion(found.count)]
    data: dict[str, Any] = {"charts": {chart.key: chart.as_data() for chart in charts}}
    try:
        scripts = [*chart_scripts(), *map_scripts(), asset("sort.js")]
        data["map"] = _map(found, draw.small, display)
    except MissingExtraError as error:
        scripts, charts, data = [asset("sort.js")], [], {}
        notes = [*notes, f"The page has no map: {error}"]
    write_page(
        path,
        "clusters.html",
        title=f"{len(clusters):,} clusters of {found.name}",
        notes=[*notes, *([f"The {shown:,} largest clusters are shown."] if shown < len(clusters) else [])],
        contents=[("map", "Map")] * ("map" in data) + [("clusters", "Clusters"), ("outliers", "Outliers")],
        data=data,
        scripts=scripts,
        evaluates="map" in data,
        facts=_facts(found),
        charts=charts,
        cards=cards,
        outliers=[draw(row, f"{clusters.similarity[row]:.2f}") for row in clusters.outliers(_OUTLIERS)],
    )


class _Drawing:
    """Draws images of the store."""

    def __init__(self, found: ClusteredImages) -> None:
        self._images, self._places = found.images, found.places

    def __call__(self, row: int, head: str) -> ShownPicture:
        place = self._places[row]
        image = thumbnail_of(self._images, row, place, _SIDE, enlarge=False)
        return shown_picture(Picture(image, head, (Path(place).name,), file=place))

    def small(self, row: int) -> Image.Image | None:
        return thumbnail_of(self._images, row, self._places[row], THUMBNAIL, enlarge=False)


def _facts(found: ClusteredImages) -> list[Fact]:
    clusters = found.clusters
    facts = [
        Fact("images", f"{len(clusters.own):,}"),
        Fact("clusters", f"{len(clusters):,}"),
        Fact("largest", f"{clusters.sizes.max():,}", f"smallest {clusters.sizes.min():,}"),
        Fact("certainty", f"{clusters.certainty.mean():.2f}", "mean; 1 at a centre, 0 between two"),
    ]
    if found.count is not None:
        value = found.count.silhouette[found.count.chosen]
        facts.append(Fact("silhouette", f"{value:.2f}", "mean; the largest of all numbers tried"))
    return facts


def _criterion(count: ClusterCount) -> Chart:
    x, y = zip(*count.silhouette.items(), strict=True)
    line = Line("silhouette", x, y, "accent", marks=True)
    chosen = Line("chosen", [count.chosen], [count.silhouette[count.chosen]], "teacher", marks=True)
    layout = {"xaxis": {"type": "log", "tickvals": [2, 5, 10, 20, 50, 100, 200]}}
    axes = ("number of clusters", "mean silhouette")
    return Chart("count", "How many clusters", *axes, [line, chosen], layout=layout)


def _map(found: ClusteredImages, draw: Callable[[int], Image.Image | None], display: Display) -> dict[str, Any]:
    rows = spread_rows(len(found.features), _MAP)
    clusters = found.clusters
    colours: list[Classes | Scale] = [Classes("cluster", clusters.own[rows], found.titles)]
    if found.labels is not None:
        colours.append(Classes("class", found.labels[rows], found.classes))
    colours.append(Scale("certainty", clusters.certainty[rows]))
    with display.counting("laying out the map", None) as progress:
        layout = lay_out(np.ascontiguousarray(found.features[rows]), progress=progress)
    names = [found.places[row] for row in rows.tolist()]
    with display.counting("drawing thumbnails", None) as progress:
        return map_data(layout, names, colours, lambda point: draw(int(rows[point])), progress=progress)
