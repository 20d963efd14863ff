"""Which columns of a table hold images and labels, as Hugging Face `datasets` describes them in the schema."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.images.labels import number_classes

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp", "bytes")
LABEL_COLUMNS = ("label", "labels", "cls", "class", "target", "fine_label")


def image_columns(file: object, schema: Any) -> tuple[str, str | None, list[str] | None]:
    """Return the columns of images and labels, and the names of the classes if the file has them."""
    features = _features(schema)
    images = [field.name for field in schema if _holds_images(field)]
    declared = [name for name in images if features.get(name, {}).get("_type") == "Image"]
    ranked = [*declared, *(name for name in IMAGE_COLUMNS if name in images)]
    if not ranked and len(images) != 1:
        raise DataError(
            f"{file} has {'several columns of bytes' if images else 'no column of encoded images'} among "
            f"{', '.join(schema.names)}: name the column of images '{IMAGE_COLUMNS[0]}'."
        )
    classes = [name for name, about in features.items() if about.get("_type") == "ClassLabel" and name in schema.names]
    candidates = [name for name in LABEL_COLUMNS if name in schema.names] + classes
    label = next(iter(candidates), None)
    names = features.get(label, {}).get("names") if label is not None else None
    return (ranked or images)[0], label, names


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the description of the columns by Hugging Face `datasets`, from the file's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    found = features if isinstance(features, dict) else {}
    return {name: about for name, about in found.items() if isinstance(about, dict)}


def _holds_images(field: Any) -> bool:
    kind = str(field.type)
    return kind in {"binary", "large_binary"} or (
        kind.startswith("struct<") and any(f"bytes: {plain}" in kind for plain in ("binary", "large_binary"))
    )


def check_columns(file: object, schema: Any, *columns: str | None) -> None:
    """Raise if a file lacks a column that the first file has."""
    for column in columns:
        if column is not None and column not in schema.names:
            raise DataError(f"{file} has no column '{column}', which the first file has; its columns are "
                            f"{', '.join(schema.names)}. Give files with the same columns.")  # fmt: skip


def words_of(values: list[Any]) -> list[str]:
    """Return labels as words; empty when one is missing, or when they are neither numbers nor words."""
    return [str(value) for value in values] if all(isinstance(value, int | str) for value in values) else []


def labels_and_classes(
    words: list[str], names: list[str] | None, count: int
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Number the labels; None unless each of `count` images has one. `names` are those of the classes, if known."""
    if len(words) != count:
        return None, ()
    if names is None or not all(word.removeprefix("-").isdecimal() for word in words):
        return number_classes(words)
    numbers = np.array(words, dtype=np.int64)
    if numbers.min() < 0 or numbers.max() >= len(names):  # hidden labels are written as −1
        return None, ()
    return numbers, tuple(names)


def encoded(value: Any) -> bytes | None:
    """Return the bytes of an image in a row; None if there are none."""
    found = value.get("bytes") if isinstance(value, dict) else value
    return found if isinstance(found, bytes) else None
