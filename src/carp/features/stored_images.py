"""The images behind the rows of a feature store."""

from functools import cached_property
from pathlib import Path

from carp.errors import CarpError, DataError, StorageError
from carp.features.store import Store
from carp.images.decoding.decode import Stored, read_file
from carp.images.identity import describe_data, is_same_data
from carp.images.open_source import open_source
from carp.images.source import Openable, Source


class StoredImages:
    """Reads the images of a store from the files that it names, or from the data opened again."""

    def __init__(self, store: Store, data: Openable | None = None) -> None:
        self._store, self._data = store, data
        self._image_of_row = store.image_of_row()

    def fetch(self, row: int, place: str) -> Stored:
        """Return the image of a row as it is stored; `place` is its path in the store."""
        if self._data is None and Path(place).is_file():
            return read_file(Path(place))
        return self._source.fetch(int(self._image_of_row[row]))

    @cached_property
    def _source(self) -> Source:
        name = str(self._store.origin.data["name"])
        if self._data is None and "://" in name:  # a store from elsewhere must not open a connection
            raise DataError(f"the images {name} are on a server. Give their address with --data to read them there.")
        try:
            source = open_source(self._data if self._data is not None else name)
        except StorageError:
            raise
        except CarpError as error:
            raise DataError(f"cannot open the images {name} again: {error} Give their new path with --data.") from None
        if not is_same_data(self._store.origin.data, describe_data(source)):
            raise DataError(
                f"{source.name} is not the data that the features were extracted from ({name}). Give the original "
                "data with --data."
            )
        return source
