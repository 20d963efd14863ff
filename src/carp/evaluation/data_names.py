"""Names of the data of a result, for tables and file names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from carp.images.sources.paper.paper_datasets import BY_NAME, DATASETS, PREFIX, find

AVERAGE = "average"
FILE_UNSAFE = r"[^\w.+%]+"  # becomes _ in the name of a file
_OTHER_TITLES = {"voc0712": "VOC07+12", AVERAGE: "Average"}
_OWN = "(own data)"  # follows the name of a folder that has the name of a published dataset
# Folder names that say nothing about the content: parts of a dataset, and folders of its images
_PARTS = frozenset({"train", "trainval", "val", "valid", "validation", "test", "jpg", "jpeg"})


def name_of_data(data: Mapping[str, Any]) -> str:
    """Return the short name of the data of a result.

    Only two kinds of data get the name of a published set, and are compared with published numbers: `dataset:NAME`,
    whose sizes were checked when it was opened, and data that a protocol named itself after it had checked the sizes
    (`data.name`). A folder is called by its own name; if that is the name of a published set, it is marked.
    """
    given = str(data.get("name") or "")
    word = given or str(data.get("train") or "data")
    if (given or word.startswith(PREFIX)) and (row := find(word)):
        return row.name
    if given in _OTHER_TITLES:
        return given
    name = _folder_name(word)
    is_published = find(name) is not None or name.lower() in _OTHER_TITLES
    return f"{name} {_OWN}" if is_published and not word.startswith("torchvision:") else name


def is_published_name(name: str) -> bool:
    """Return whether only verified data have this name."""
    return name in BY_NAME or name in _OTHER_TITLES


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return names for folders with the same name: as much of the end of each path as is needed to tell them apart."""
    parts = [_parts(path) for path in paths]
    for count in range(2, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(paths)):
            return names
    return list(paths)


def without_mark(name: str) -> str:
    """Return the name without the mark of a folder that has the name of a published dataset."""
    return name.removesuffix(_OWN).strip()


def title_of_data(name: str) -> str:
    """Return the name as tables show it."""
    return BY_NAME[name].title if name in BY_NAME else _OTHER_TITLES.get(name, name)


def names_in_order() -> list[str]:
    """Return the names of published data in the order of the paper's tables."""
    return [*(row.name for row in DATASETS), *_OTHER_TITLES]


def _folder_name(word: str) -> str:
    """Return the name of a folder, without `train` or `test` at its end."""
    parts = _parts(word)
    return parts[-1] if parts else word


def _parts(word: str) -> list[str]:
    parts = [part for part in re.split(r"[/\\]", word) if part]
    while len(parts) > 1 and parts[-1].lower() in _PARTS:
        parts.pop()
    return parts
