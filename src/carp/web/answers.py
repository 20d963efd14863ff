"""What the page may ask about: pictures, neighbours, maps, groups (`groups.py`), selections.

Answers are plain values for JSON, or bytes. Names in them are text that scripts can show (`text_for_scripts`).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.features.extract import Features, Progress
from carp.report.pages.template import text_for_scripts
from carp.web.background import SLOW, Background, Task
from carp.web.chosen_images import as_text, save
from carp.web.collection import ImageCollection
from carp.web.groups import Groups, packed
from carp.web.maps import Maps
from carp.web.picture_cache import PictureCache
from carp.web.space import Space

NEIGHBOURS = 24
FEWEST_CLUSTERS, MOST_CLUSTERS = 2, 200
Values = dict[str, Any]


class Answers:
    """Everything that the page can ask for."""

    def __init__(self, images: ImageCollection, spaces: Sequence[Space], out: Path | None) -> None:
        """Take images, features of them, and the folder for selections."""
        self.images, self.spaces, self._out = images, spaces, out
        self.pictures, self.background = PictureCache(images), Background()
        self.groups = Groups(images, spaces, self.background)
        self.maps = Maps(spaces, self.background)
        for number, space in enumerate(spaces):  # so that the first click need not wait
            self.background.ask(("search", number), partial(_prepare, space))

    # Images

    def about(self) -> Values:
        """What the page needs to know at the start."""
        most = max(FEWEST_CLUSTERS, min(MOST_CLUSTERS, len(self.images) // 2))
        known = len(self.images.classes) if self.images.labels is not None else 0
        usual = known if known > 1 else int(np.sqrt(len(self.images)) / 3)
        return {
            "images": len(self.images),
            "spaces": [
                {
                    "name": text_for_scripts(space.name),
                    "encodes": space.load is not None,
                    "prototypes": space.has_prototypes,
                }
                for space in self.spaces
            ],
            "classes": [text_for_scripts(name) for name in self.images.classes] if known else [],
            "clusters": {"least": FEWEST_CLUSTERS, "most": most, "usual": int(np.clip(usual, FEWEST_CLUSTERS, most))},
            "saves": self._out is not None,
        }

    def labels(self) -> bytes:
        """The class of every image, as int32."""
        if self.images.labels is None:
            raise DataError("these images have no labels. Put them into one sub-folder per class, and embed again.")
        return packed(self.images.labels, "<i4")

    # Neighbours

    def neighbours(self, row: int) -> Values:
        """The nearest images of one, in every space."""
        return {
            "query": self.images.described(row),
            "lists": self._lists([space.features[row] for space in self.spaces], row),
        }

    def search(self, stored: bytes, name: str) -> Values:
        """The images that are nearest to one that is not among them."""
        able = [space for space in self.spaces if space.load is not None]
        if not able:
            raise DataError("the encoder of these vectors is not known, so other images cannot be compared with them.")
        vectors = [space.encode(stored, name) if space in able else None for space in self.spaces]
        return {"query": None, "lists": self._lists(vectors, None)}

    def _lists(self, vectors: Sequence[Features | None], row: int | None) -> list[Values]:
        found = []
        for space, vector in zip(self.spaces, vectors, strict=True):
            cosines, rows = (
                space.search.nearest(vector, NEIGHBOURS + 1) if vector is not None else (np.empty(0), np.empty(0, int))
            )
            others = rows != row
            found.append((cosines[others][:NEIGHBOURS], rows[others][:NEIGHBOURS]))
        lists = []
        for number, (cosines, rows) in enumerate(found):
            images = self.images.shown(rows, cosines)
            elsewhere = {int(each) for other, (_, more) in enumerate(found) if other != number for each in more}
            for image in images:
                image["kept"] = len(found) < 2 or image["row"] in elsewhere
            lists.append({"space": text_for_scripts(self.spaces[number].name), "images": images})
        return lists

    def exactness(self, number: int) -> Task:
        """Whether neighbours are exact, and if not, how many are found."""
        space = self.spaces[number]
        return self.background.ask(
            ("recall", number), lambda _: {"exact": space.search.is_exact, "recall": space.search.recall}, SLOW
        )

    # Selections

    def selection(self, rows: NDArray[np.int64], kind: str, label: str) -> bytes:
        """Images as text."""
        return as_text(kind, *self._chosen(rows, label))

    def saved(self, rows: NDArray[np.int64], kind: str, label: str) -> Values:
        """Images as a file or folder of links, in the folder that the command was given."""
        if self._out is None:
            raise DataError("nothing can be saved here. Start `carp explore` with --out FOLDER.")
        return {"saved": text_for_scripts(str(save(self._out, kind, *self._chosen(rows, label), label)))}

    def _chosen(self, rows: NDArray[np.int64], label: str) -> tuple[list[str], list[str]]:
        """Places and labels: the one that was typed, or the classes of the images."""
        places = [self.images.place(int(row)) for row in rows]
        return places, [label or self._class(int(row)) for row in rows]

    def _class(self, row: int) -> str:
        number = -1 if self.images.labels is None else int(self.images.labels[row])
        return self.images.classes[number] if 0 <= number < len(self.images.classes) else ""


def _prepare(space: Space, _progress: Progress) -> bool:
    """Make what neighbours are found with; the space keeps it."""
    return space.search.is_exact
