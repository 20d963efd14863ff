"""The images that are explored, by row: their pictures, names and labels. Every space has features of these rows."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError, UnreadableImageError
from carp.exploration.layout import spread_rows
from carp.features.store import Store
from carp.features.stored_images import StoredImages
from carp.features.stored_places import StoredPlaces
from carp.images.decoding.decode import Stored
from carp.images.source import Source
from carp.report.pages.image_map import shared_folder
from carp.report.pages.template import text_for_scripts

_SOME = 1000  # images whose places are compared


class ImageCollection:
    """Images, from a feature store or from a source whose images are all in use."""

    def __init__(self, opened: Store | Source, data: Source | None = None) -> None:
        """Take the rows of a store, whose images are in `data` if that is given, or all images of a source."""
        self.name, self.classes, self._opened = opened.name, opened.classes, opened
        self._images = StoredImages(opened, data) if isinstance(opened, Store) else None
        labels = opened.labels
        self.labels = None if labels is None or labels.ndim > 1 else np.asarray(labels)
        """The class of every image, [M]; -1 is none. None if there are no labels, or several per image."""

    def __len__(self) -> int:
        return len(self._opened)

    @cached_property
    def image_of_row(self) -> NDArray[np.int64]:
        """The number of every row's image in the data."""
        opened = self._opened
        return opened.image_of_row() if isinstance(opened, Store) else np.arange(len(opened))

    @property
    def fingerprint(self) -> str:
        """Of the data."""
        opened = self._opened
        return str(opened.origin.data["fingerprint"]) if isinstance(opened, Store) else opened.fingerprint

    def check(self) -> None:
        """Raise if the images are no longer where they were."""
        if isinstance(self._opened, Store) and len(self):
            self.place(len(self) - 1)
            try:
                self.fetch(0)
            except UnreadableImageError:  # one file that is damaged or gone is shown as such
                return
            except DataError as error:
                raise DataError(f"the images of {self._opened.folder} cannot be shown: {error}") from None

    def place(self, row: int) -> str:
        """Where an image is: a path, or a name within an archive."""
        return self._places[row] if self._places is not None else self._opened.place(row)  # type: ignore[union-attr]

    def shown_name(self, row: int) -> str:
        """The place without the folder that all images share, as text for a page."""
        return text_for_scripts(self.place(row).removeprefix(self._folder))

    def label(self, row: int) -> str:
        """The name of the class of an image; empty if there is none."""
        number = -1 if self.labels is None else int(self.labels[row])
        return text_for_scripts(self.classes[number]) if 0 <= number < len(self.classes) else ""

    def described(self, row: int) -> dict[str, Any]:
        """An image in words."""
        return {"row": row, "name": self.shown_name(row), "label": self.label(row)}

    def shown(self, rows: Iterable[int], values: Iterable[float]) -> list[dict[str, Any]]:
        """Images in words, each with a number."""
        return [
            {**self.described(int(row)), "value": round(float(value), 4)}
            for row, value in zip(rows, values, strict=True)
        ]

    def fetch(self, row: int) -> Stored:
        """An image as it is stored."""
        if self._images is None:
            assert isinstance(self._opened, Source)
            return self._opened.fetch(row)
        return self._images.fetch(row, self.place(row))

    @cached_property
    def _folder(self) -> str:
        """The folder that some images share, and so probably all."""
        return shared_folder([self.place(int(row)) for row in spread_rows(len(self), _SOME)])

    @cached_property
    def _places(self) -> StoredPlaces | None:
        return StoredPlaces(self._opened) if isinstance(self._opened, Store) else None
