"""Small pictures of stored images, for sheets and pages."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from PIL import Image

from carp.errors import CarpError, DataError, StorageError, UnreadableImageError
from carp.features.store import Store
from carp.images.decoding.decode import Stored, decode, read_file
from carp.images.open_source import open_source
from carp.images.source import Openable, Source
from carp.report.pages.thumbnails import thumbnail


class StoredImages:
    """The images behind the rows of a store: files where they were, or the data opened again."""

    def __init__(self, store: Store, data: Openable | None = None) -> None:
        self._store, self._data = store, data
        self._image_of_row = store.image_of_row()

    def picture(self, row: int, place: str) -> Image.Image | None:
        """A small picture, or None if the image cannot be read any more."""
        try:
            return thumbnail(decode(self.fetch(row, place), place))
        except UnreadableImageError:
            return None

    def fetch(self, row: int, place: str) -> Stored:
        """The image as it is stored."""
        if self._data is None and Path(place).is_file():
            return read_file(Path(place))
        return self._source.fetch(int(self._image_of_row[row]))

    @cached_property
    def _source(self) -> Source:
        name = str(self._store.origin.data["name"])
        try:
            source = open_source(self._data if self._data is not None else name)
        except StorageError:
            raise
        except CarpError:
            raise DataError(f"the images {name} are not where they were: give them with --data.") from None
        if source.fingerprint != self._store.origin.data["fingerprint"]:
            raise DataError(f"{source.name} is not what the features were made of: give the images with --data.")
        return source


def places_of(store: Store, rows: set[int]) -> dict[int, str]:
    """Where some images lie, by row."""
    return dict(_chosen(store, rows))


def _chosen(store: Store, rows: set[int]) -> Iterator[tuple[int, str]]:
    for row, place in enumerate(store.places()):
        if row in rows:
            yield row, place
