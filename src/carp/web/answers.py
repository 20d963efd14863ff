"""What the page may ask about: images, neighbours, maps, clusters, prototypes, copies, comparisons, selections.

Answers are plain values for JSON, or bytes. Names in them are text that scripts can show (`text_for_scripts`).

Shapes: M images.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.explore.cluster_names import cluster_names
from carp.explore.clusters import Clusters, cluster_landmarks
from carp.explore.kept_neighbours import KeptNeighbours, kept_neighbours
from carp.explore.layout import spread_rows
from carp.features.extract import Features, Progress
from carp.report.pages.template import text_for_scripts
from carp.similarity.copy_groups import group_copies
from carp.similarity.near_copies import find_copies
from carp.web.background import SLOW, Background, Task
from carp.web.chosen_images import as_text, save
from carp.web.collection import ImageCollection
from carp.web.maps import Maps
from carp.web.picture_cache import PictureCache
from carp.web.space import Space, SpacePrototypes

NEIGHBOURS = 24
FEWEST_CLUSTERS, MOST_CLUSTERS = 2, 200
_LANDMARKS = 20_000  # images that k-means sees
_COMPARED = 10_000  # images whose neighbours are compared
_MOST_COPIES_AMONG = 200_000  # images: exact neighbours of all take minutes
_ON_CARD, _DOUBTFUL, _ON_PAGE, _GROUPS, _CHANGED, _PROTOTYPES = 8, 4, 60, 60, 24, 24
Values = dict[str, Any]


class Answers:
    """Everything that the page can ask for."""

    def __init__(self, images: ImageCollection, spaces: Sequence[Space], out: Path | None) -> None:
        """Take images, features of them, and the folder for selections."""
        self.images, self.spaces, self._out = images, spaces, out
        self.pictures, self.background = PictureCache(images), Background()
        self.maps = Maps(spaces, self.background)

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
                    "features": space.features.shape[1],
                    "encodes": space.load is not None,
                    "prototypes": space.has_prototypes,
                }
                for space in self.spaces
            ],
            "classes": [text_for_scripts(name) for name in self.images.classes] if known else [],
            "clusters": {"least": FEWEST_CLUSTERS, "most": most, "usual": int(np.clip(usual, FEWEST_CLUSTERS, most))},
            "saves": self._out is not None,
            "copies": len(self.images) <= _MOST_COPIES_AMONG,
        }

    def image(self, row: int) -> Values:
        """One image in words."""
        return {"row": row, "name": self.images.shown_name(row), "label": self.images.label(row)}

    def shown(self, rows: Iterable[int], values: Iterable[float] | None = None) -> list[Values]:
        """Images in words, each with a number."""
        found = [self.image(int(row)) for row in rows]
        for image, value in zip(found, values if values is not None else (), strict=values is not None):
            image["value"] = round(float(value), 4)
        return found

    def labels(self) -> bytes:
        """The class of every image, as int32."""
        if self.images.labels is None:
            raise DataError("these images have no labels. Put them into one sub-folder per class, and embed again.")
        return _packed(self.images.labels, "<i4")

    # Neighbours

    def neighbours(self, row: int) -> Values:
        """The nearest images of one, in every space."""
        return {"query": self.image(row), "lists": self._lists([space.features[row] for space in self.spaces], row)}

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
            images = self.shown(rows, cosines)
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

    # Clusters

    def clusters(self, number: int, k: int) -> Task:
        """The clusters of a space."""
        return self.background.ask(("clusters", number, k), partial(self._clusters, self.spaces[number], k))

    def _clusters(self, space: Space, k: int, progress: Progress) -> tuple[Clusters, list[str]]:
        progress(0, 0)
        found = cluster_landmarks(space.features, k, landmarks=_LANDMARKS)
        rows = spread_rows(len(self.images), _LANDMARKS)
        labels = None if self.images.labels is None else self.images.labels[rows]
        places = [] if labels is not None else [self.images.place(int(row)) for row in rows]
        named = cluster_names(found.own[rows], places, labels, self.images.classes)
        named += [""] * (len(found) - len(named))
        titles = [f"{number}: {name}" if name else f"cluster {number}" for number, name in enumerate(named, start=1)]
        return found, [text_for_scripts(title) for title in titles]

    def cluster_cards(self, found: Clusters, titles: Sequence[str]) -> Values:
        """Every cluster with its most typical images."""
        certainty = np.bincount(found.own, weights=found.certainty) / found.sizes
        typical = _first_of_groups(found.own, -found.similarity, len(found), _ON_CARD)
        doubtful = _first_of_groups(found.own, found.certainty, len(found), _DOUBTFUL)
        return {
            "titles": list(titles),
            "certainty": round(float(found.certainty.mean()), 4),
            "cards": [
                {
                    "number": number,
                    "title": titles[number],
                    "size": int(found.sizes[number]),
                    "tightness": round(float(found.tightness[number]), 4),
                    "certainty": round(float(certainty[number]), 4),
                    "images": self.shown(typical[number], found.similarity[typical[number]]),
                    "doubtful": self.shown(doubtful[number], found.certainty[doubtful[number]]),
                }
                for number in range(len(found))
            ],
        }

    def cluster(self, found: Clusters, number: int, start: int) -> Values:
        """The images of one cluster, the most typical first, from one place on."""
        if not 0 <= number < len(found):
            raise DataError(f"there is no cluster {number + 1}: there are {len(found)}. Choose another one.")
        rows = np.flatnonzero(found.own == number)
        rows = rows[np.argsort(-found.similarity[rows], kind="stable")]
        return self._page(rows, found.similarity[rows], start)

    # Prototypes

    def prototypes(self, number: int) -> Task:
        """The prototypes behind a space."""
        return self.background.ask(("prototypes", number), lambda _: self.spaces[number].prototypes())

    def prototype_cards(self, seen: SpacePrototypes) -> Values:
        """The most and the least used prototypes, and twins, with their images."""
        found = seen.found

        def card(number: int) -> Values:
            return {
                "number": number,
                "title": f"prototype {number}",
                "share": round(float(found.shares[number] * seen.block_size), 4),
                "images": self.shown(seen.rows[found.nearest[number]], found.cosines[number]),
            }

        return {
            "count": len(found.shares),
            "compared": len(seen.rows),
            "unused": int((found.shares == 0).sum()),
            "most": [card(number) for number in found.most_used(_PROTOTYPES)],
            "least": [card(number) for number in found.least_used(_PROTOTYPES)],
            "twins": [{"cosine": round(s, 4), "cards": [card(a), card(b)]} for a, b, s in found.twins],
            "outliers": self.shown(
                seen.rows[outliers := found.outliers(_CHANGED)], found.closeness[np.array(outliers, dtype=np.int64)]
            ),
        }

    def prototype(self, seen: SpacePrototypes, number: int, start: int) -> Values:
        """The images around one prototype, the nearest first."""
        if not 0 <= number < len(seen.prototypes):
            raise DataError(f"there is no prototype {number}: there are {len(seen.prototypes):,}. Choose another one.")
        cosines = seen.embeddings @ seen.prototypes[number]
        order = np.argsort(-cosines, kind="stable")
        return self._page(seen.rows[order], cosines[order], start)

    # Copies, comparisons

    def copies(self, number: int) -> Task:
        """Groups of near-duplicates."""
        return self.background.ask(("copies", number), partial(self._copies, self.spaces[number]), SLOW)

    def _copies(self, space: Space, progress: Progress) -> Values:
        if len(self.images) > _MOST_COPIES_AMONG:
            raise DataError(
                f"near-duplicates of {len(self.images):,} images take hours. Run `carp duplicates` in a terminal."
            )
        found = find_copies(space.features, progress=progress)
        groups = group_copies(found, self.images.place, self.images.fetch, np.arange(len(self.images)))
        return {
            "reason": found.threshold.reason,
            "count": len(groups),
            "groups": [
                {
                    "agreement": round(group.agreement, 3),
                    "images": [
                        {**self.image(one.row), "value": round(one.similarity, 4), "size": one.size()}
                        for one in group.members[:_ON_PAGE]
                    ],
                }
                for group in groups[:_GROUPS]
            ],
        }

    def comparison(self) -> Task:
        """What the first two spaces make of the same neighbourhoods."""
        if len(self.spaces) < 2:
            raise DataError(
                "there is nothing to compare. Start `carp explore` with two runs, or with RUN@5 and RUN@20."
            )
        one, other = (space.features for space in self.spaces[:2])
        return self.background.ask(
            ("comparison",), lambda progress: kept_neighbours(one, other, most=_COMPARED, progress=progress)
        )

    def changes(self, found: KeptNeighbours) -> Values:
        """The images whose neighbours changed most, and least."""
        kept = np.full(len(self.images), np.nan, dtype=np.float32)
        kept[found.rows] = found.kept
        least, most = found.least(_CHANGED), found.most(_CHANGED)
        return {
            "mean": round(found.mean, 4),
            "neighbours": found.neighbours,
            "compared": len(found.rows),
            "least": self.shown(least, kept[least]),
            "most": self.shown(most, kept[most]),
        }

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

    def _page(self, rows: NDArray[np.int64], values: Features, start: int) -> Values:
        some = slice(max(0, start), max(0, start) + _ON_PAGE)
        return {"count": len(rows), "start": some.start, "images": self.shown(rows[some], values[some])}


def colour_values(found: Clusters | SpacePrototypes | KeptNeighbours, what: str, count: int) -> bytes:
    """A number per image to colour by: its group as int32, -1 for none, or a share as float32, NaN for none."""
    if isinstance(found, Clusters):
        return _packed(found.own, "<i4") if what == "own" else _packed(found.certainty, "<f4")
    if isinstance(found, KeptNeighbours):
        return _packed(_spread_out(found.kept, found.rows, count, np.nan), "<f4")
    if what == "own":
        return _packed(_spread_out(found.found.own, found.rows, count, -1), "<i4")
    return _packed(_spread_out(found.found.certainty, found.rows, count, np.nan), "<f4")


def _spread_out(values: NDArray[Any], rows: NDArray[np.int64], count: int, missing: float) -> NDArray[Any]:
    every = np.full(count, missing, dtype=values.dtype)
    every[rows] = values
    return every


def _first_of_groups(own: NDArray[np.int64], order_by: Features, groups: int, count: int) -> list[NDArray[np.int64]]:
    """The rows of every group with the smallest values; one sort serves all groups."""
    order = np.lexsort((order_by, own))
    starts = np.searchsorted(own[order], np.arange(groups + 1))
    return [order[start : min(start + count, stop)] for start, stop in pairwise(starts)]


def _packed(values: NDArray[Any], kind: str) -> bytes:
    return np.ascontiguousarray(values, dtype=kind).tobytes()
