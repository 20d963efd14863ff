"""The sections of a report about images: prototypes, twins, outliers, neighbours, confusions, views."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from carp.console.progress import Display
from carp.console.quantities import counted
from carp.errors import UnreadableImageError
from carp.exploration.prototype_images import TWIN_COSINE
from carp.exploration.run_images import RunImages, confused
from carp.images.inspect.rendered_views import render_views
from carp.images.source import Source
from carp.report.pages.image_map import THUMBNAIL, Classes, Scale, map_data
from carp.report.pages.template import ShownPicture, data_address, shown_picture
from carp.report.pages.thumbnails import GREEN, Picture, thumbnail_of
from carp.runs.run_folder import Run

_SIDE = 112
_PROTOTYPES, _LEAST, _OUTLIERS = 8, 4, 14
_PAIRS = 8  # of confused classes
_VIEWS_OF = 4  # images
_MOST_LOCAL = 6


@dataclass(frozen=True)
class Strip:
    """A title, a few words, and pictures."""

    title: str
    about: str
    pictures: list[ShownPicture]


@dataclass(frozen=True)
class Query:
    """An image and its nearest neighbours before and after training."""

    query: ShownPicture
    before: list[ShownPicture]
    after: list[ShownPicture]


@dataclass(frozen=True)
class Views:
    """An image and views of it: addresses of pictures."""

    name: str
    image: str
    globals: list[str]
    locals: list[str]
    smooth: bool


class ImageSections:
    """What a page shows of the images of one run."""

    def __init__(self, found: RunImages) -> None:
        self._found = found
        self._drawn: dict[int, Image.Image | None] = {}

    def map(self, display: Display) -> dict[str, Any]:
        """The data of the map."""
        found, prototypes = self._found, self._found.prototypes
        colours: list[Classes | Scale] = []
        if found.labels is not None:
            colours.append(Classes("class", found.labels, found.classes))
        if found.predicted is not None and found.labels is not None:
            wrong = (found.predicted != found.labels).astype(np.int64)
            colours.append(Classes("k-NN", wrong, ["class found", "another class"]))
        colours.append(Scale("certainty", prototypes.certainty))
        colours.append(Scale("cosine with the nearest prototype", prototypes.closeness))
        with display.counting("drawing thumbnails", None) as progress:
            return map_data(found.layout, found.places, colours, self._small, progress=progress)

    def most_used(self) -> list[Strip]:
        """The prototypes that most images prefer."""
        return [self._strip(number) for number in self._found.prototypes.most_used(_PROTOTYPES)]

    def least_used(self) -> list[Strip]:
        """The prototypes that fewest images prefer."""
        return [self._strip(number) for number in self._found.prototypes.least_used(_LEAST)]

    def use(self) -> str:
        """A sentence about how many prototypes are used."""
        shares = self._found.prototypes.shares
        used = int((shares > 0).sum())
        share = used / len(shares)
        return f"{used:,} of {len(shares):,} prototypes ({share:.0%}) are preferred in their block by some image."

    def twins(self) -> list[tuple[str, Strip, Strip]]:
        """Pairs of prototypes that point the same way, with the images of both."""
        return [
            (f"cosine {cosine:.3f}{', twins' if cosine > TWIN_COSINE else ''}", self._strip(a, 4), self._strip(b, 4))
            for a, b, cosine in self._found.prototypes.twins
        ]

    def outliers(self) -> list[ShownPicture]:
        """Images that no prototype wants."""
        near = self._found.prototypes.closeness
        return [self._picture(row, f"cosine {near[row]:.2f}") for row in self._found.prototypes.outliers(_OUTLIERS)]

    def neighbours(self) -> list[Query]:
        """Random queries and their neighbours."""
        found = self._found
        queries = []
        for number, row in enumerate(found.queries.tolist()):
            sides = (
                [
                    self._picture(int(other), f"{cosine:.2f}", marked=self._same(row, int(other)))
                    for other, cosine in zip(side.rows[number], side.cosines[number], strict=True)
                ]
                for side in (found.before, found.after)
            )
            label = "" if found.labels is None else found.classes[found.labels[row]]
            queries.append(Query(self._picture(row, label or "query"), *sides))
        return queries

    def accuracies(self) -> list[tuple[str, float]]:
        """k-NN accuracy by encoder."""
        return list(self._found.accuracies.items())

    def confused_pairs(self) -> list[tuple[str, str, int, float]]:
        """The classes that are most often taken for another: class, taken for, images, share of the class."""
        found = self._found
        if found.labels is None or found.predicted is None:
            return []
        counts = confused(found.labels, found.predicted, len(found.classes))
        sizes = counts.sum(axis=1)
        np.fill_diagonal(counts, 0)
        order = np.argsort(-counts.ravel(), kind="stable")[:_PAIRS]
        pairs = [divmod(int(place), len(counts)) for place in order if counts.flat[place]]
        return [(found.classes[a], found.classes[b], int(counts[a, b]), counts[a, b] / sizes[a]) for a, b in pairs]

    def _strip(self, number: int, most: int | None = None) -> Strip:
        found = self._found.prototypes
        outcomes = max(2, self._found.block_size)
        nearest = int((found.own == number).sum())
        about = f"{found.shares[number] * outcomes:.2g} times even use; the nearest of {counted(nearest, 'image')}"
        rows = zip(found.nearest[number][:most].tolist(), found.cosines[number].tolist(), strict=False)
        return Strip(f"Prototype {number}", about, [self._picture(row, f"{cosine:.2f}") for row, cosine in rows])

    def _same(self, row: int, other: int) -> bool:
        labels = self._found.labels
        return labels is not None and bool(labels[row] == labels[other])

    def _picture(self, row: int, head: str, *, marked: bool = False) -> ShownPicture:
        place = self._found.places[row]
        name = Path(place).name
        return shown_picture(Picture(self._image(row), head, (name,), GREEN if marked else None, place))

    def _image(self, row: int) -> Image.Image | None:
        if row not in self._drawn:
            self._drawn[row] = self._read(row, _SIDE)
        return self._drawn[row]

    def _small(self, row: int) -> Image.Image | None:
        image = self._read(row, THUMBNAIL)
        return None if image is None else image.convert("RGB")

    def _read(self, row: int, side: int) -> Image.Image | None:
        found = self._found
        return thumbnail_of(found.images, int(found.store_rows[row]), found.places[row], side, enlarge=False)


def sample_views(run: Run, source: Source) -> list[Views]:
    """A few images and the views that training made of them in its first epoch."""
    shown = []
    for index in map(int, np.unique(np.linspace(0, len(source) - 1, 3 * _VIEWS_OF).round().astype(int))):
        try:
            made = render_views(source, index, run.config, epoch=0)
        except UnreadableImageError:
            continue
        image = Image.fromarray(made.image)
        image.thumbnail((160, 160))
        addresses = [data_address(Image.fromarray(view)) for view in made.views[: 2 + _MOST_LOCAL]]
        smooth = len(made.views[0]) > 64
        shown.append(Views(Path(source.place(index)).name, data_address(image), addresses[:2], addresses[2:], smooth))
        if len(shown) == _VIEWS_OF:
            break
    return shown
