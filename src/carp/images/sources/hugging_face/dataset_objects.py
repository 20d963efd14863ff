"""Objects of Hugging Face `datasets`, recognised by their members: the package itself is not imported."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.source import Opening
from carp.images.sources.hugging_face.image_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    encoded,
    labels_and_classes,
    words_of,
)
from carp.images.sources.python_objects import MapStyleSource


class DatasetSource(MapStyleSource):
    """A `datasets.Dataset`: rows are dictionaries, and `features` describes their columns.

    Images are fetched as they are stored, not decoded by the dataset.
    """

    kind = ""
    claim_order = 20
    label_remedy = "give it a column 'label'"

    def __init__(self, dataset: Any) -> None:
        features: Mapping[str, Any] = dataset.features
        self._image, self._label = _columns(features)
        super().__init__(_Rows(_undecoded(dataset, self._image), self._image))
        self.name, self._columns = "Dataset", (dataset, features)
        info = getattr(getattr(dataset, "info", None), "dataset_name", None)
        if isinstance(info, str) and info:
            self.name = info

    @classmethod
    def claims(cls, data: object) -> bool:
        """Claim an object with a length, rows and a description of its columns."""
        return isinstance(getattr(data, "features", None), Mapping) and super().claims(data)

    @classmethod
    def open(cls, data: Any, how: Opening) -> "DatasetSource":  # noqa: ARG003 - an object needs no options
        """Use its rows as images."""
        return DatasetSource(data)

    @cached_property
    def _labels_and_classes(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
        if self._label is None:
            return None, ()
        dataset, features = self._columns
        names = getattr(features[self._label], "names", None)
        words = words_of([value.item() if isinstance(value, np.generic) else value for value in dataset[self._label]])
        return labels_and_classes(words, names, len(self))


class _Rows:
    """The images of a dataset, by number: bytes where it has them."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column = dataset, column

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        image = self._dataset[index][self._column]
        if isinstance(image, dict):
            return encoded(image) or image.get("path")
        return image


def _columns(features: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the columns of images and labels."""
    declared = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    images = declared or [name for name in IMAGE_COLUMNS if name in features]
    if not images:
        raise DataError(
            f"the dataset has no column of images among {', '.join(map(str, features))}: name it '{IMAGE_COLUMNS[0]}', "
            "or cast it to Image()."
        )
    classes = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    return images[0], next((name for name in [*LABEL_COLUMNS, *classes] if name in features), None)


def _undecoded(dataset: Any, column: str) -> Any:
    """Return the dataset without decoding, if it can be switched off: CARP decodes at the size that it needs."""
    feature = dataset.features[column]
    if getattr(feature, "decode", False) and hasattr(dataset, "cast_column"):
        with suppress(Exception):  # foreign code; decoded images serve as well
            return dataset.cast_column(column, type(feature)(decode=False))
    return dataset
