"""Groups of images: clusters, prototypes, near-duplicates, and images whose neighbours two encoders disagree on."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.errors import DataError
from carp.exploration.cluster_names import cluster_names
from carp.exploration.clusters import Clusters, cluster_landmarks
from carp.exploration.kept_neighbours import KeptNeighbours, kept_neighbours
from carp.exploration.layout import spread_rows
from carp.features.extract import Features, Progress
from carp.report.pages.template import text_for_scripts
from carp.similarity.copy_groups import group_copies
from carp.similarity.near_copies import find_copies
from carp.web.background import COPIES, Background, Task
from carp.web.collection import ImageCollection
from carp.web.space import Space, SpacePrototypes

_MOST_COPIES_AMONG = 200_000  # images: exact neighbours of all take minutes
_LANDMARKS = 20_000  # images that k-means sees
_COMPARED = 10_000  # images whose neighbours are compared
_ON_CARD, _DOUBTFUL, _ON_PAGE, _GROUPS, _CHANGED, _PROTOTYPES = 8, 4, 60, 60, 24, 24
Values = dict[str, Any]


class Groups:
    """Computes groups in the background, and describes them."""

    def __init__(self, images: ImageCollection, spaces: Sequence[Space], background: Background) -> None:
        self._images, self._spaces, self._background = images, spaces, background

    def clusters(self, number: int, k: int) -> Task:
        """The clusters of a space."""
        return self._background.ask(("clusters", number, k), partial(self._clusters, self._spaces[number], k))

    def _clusters(self, space: Space, k: int, progress: Progress) -> tuple[Clusters, list[str]]:
        progress(0, 0)
        found = cluster_landmarks(space.features, k, landmarks=_LANDMARKS)
        rows = spread_rows(len(self._images), _LANDMARKS)
        labels = None if self._images.labels is None else self._images.labels[rows]
        places = [] if labels is not None else [self._images.place(int(row)) for row in rows]
        named = cluster_names(found.own[rows], places, labels, self._images.classes)
        named += [""] * (len(found) - len(named))
        titles = [f"{number}: {name}" if name else f"cluster {number}" for number, name in enumerate(named, start=1)]
        return found, [text_for_scripts(title) for title in titles]

    def cluster_cards(self, found: Clusters, titles: Sequence[str]) -> Values:
        """Every cluster with its most typical images."""
        sizes, tightness = found.sizes, found.tightness
        certainty = np.bincount(found.own, weights=found.certainty) / sizes
        typical = _first_of_groups(found.own, -found.similarity, len(found), _ON_CARD)
        doubtful = _first_of_groups(found.own, found.certainty, len(found), _DOUBTFUL)
        return {
            "titles": list(titles),
            "certainty": round(float(found.certainty.mean()), 4),
            "cards": [
                {
                    "number": number,
                    "title": titles[number],
                    "size": int(sizes[number]),
                    "tightness": round(float(tightness[number]), 4),
                    "certainty": round(float(certainty[number]), 4),
                    "images": self._images.shown(typical[number], found.similarity[typical[number]]),
                    "doubtful": self._images.shown(doubtful[number], found.certainty[doubtful[number]]),
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

    def prototypes(self, number: int) -> Task:
        """The prototypes behind a space."""
        return self._background.ask(("prototypes", number), lambda _: self._spaces[number].prototypes())

    def prototype_cards(self, seen: SpacePrototypes) -> Values:
        """The most and the least used prototypes, and twins, with their images."""
        found = seen.found

        def card(number: int) -> Values:
            return {
                "number": number,
                "title": f"prototype {number}",
                "share": round(float(found.shares[number] * seen.block_size), 4),
                "images": self._images.shown(seen.rows[found.nearest[number]], found.cosines[number]),
            }

        return {
            "count": len(found.shares),
            "compared": len(seen.rows),
            "unused": int((found.shares == 0).sum()),
            "most": [card(number) for number in found.most_used(_PROTOTYPES)],
            "least": [card(number) for number in found.least_used(_PROTOTYPES)],
            "twins": [{"cosine": round(s, 4), "cards": [card(a), card(b)]} for a, b, s in found.twins],
            "outliers": self._images.shown(
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

    def copies(self, number: int) -> Task:
        """Groups of near-duplicates."""
        return self._background.ask(("duplicates", number), partial(self._copies, self._spaces[number]), COPIES)

    def _copies(self, space: Space, progress: Progress) -> Values:
        if len(self._images) > _MOST_COPIES_AMONG:
            raise DataError(
                f"near-duplicates of {len(self._images):,} images take hours. Run `carp duplicates` in a terminal."
            )
        found = find_copies(space.features, progress=progress)
        groups = group_copies(found, self._images.place, self._images.fetch, np.arange(len(self._images)))
        return {
            "reason": found.threshold.reason,
            "count": len(groups),
            "groups": [
                {
                    "agreement": round(group.agreement, 3),
                    "images": [
                        {**self._images.described(one.row), "value": round(one.similarity, 4), "size": one.size()}
                        for one in group.members[:_ON_PAGE]
                    ],
                }
                for group in groups[:_GROUPS]
            ],
        }

    def comparison(self) -> Task:
        """What the first two spaces make of the same neighbourhoods."""
        if len(self._spaces) < 2:
            raise DataError(
                "there is nothing to compare. Start `carp explore` with two runs, or with RUN@5 and RUN@20."
            )
        one, other = (space.features for space in self._spaces[:2])
        return self._background.ask(
            ("comparison",), lambda progress: kept_neighbours(one, other, most=_COMPARED, progress=progress)
        )

    def changes(self, found: KeptNeighbours) -> Values:
        """The images whose neighbours changed most, and least."""
        kept = np.full(len(self._images), np.nan, dtype=np.float32)
        kept[found.rows] = found.kept
        least, most = found.least(_CHANGED), found.most(_CHANGED)
        return {
            "mean": round(found.mean, 4),
            "neighbours": found.neighbours,
            "compared": len(found.rows),
            "least": self._images.shown(least, kept[least]),
            "most": self._images.shown(most, kept[most]),
        }

    def _page(self, rows: NDArray[np.int64], values: Features, start: int) -> Values:
        some = slice(max(0, start), max(0, start) + _ON_PAGE)
        return {"count": len(rows), "start": some.start, "images": self._images.shown(rows[some], values[some])}


def colour_values(found: Clusters | SpacePrototypes | KeptNeighbours, what: str, count: int) -> bytes:
    """A number per image to colour by: its group as int32, -1 for none, or a share as float32, NaN for none."""
    if isinstance(found, Clusters):
        return packed(found.own, "<i4") if what == "own" else packed(found.certainty, "<f4")
    if isinstance(found, KeptNeighbours):
        return packed(_spread_out(found.kept, found.rows, count, np.nan), "<f4")
    if what == "own":
        return packed(_spread_out(found.found.own, found.rows, count, -1), "<i4")
    return packed(_spread_out(found.found.certainty, found.rows, count, np.nan), "<f4")


def _spread_out(values: NDArray[Any], rows: NDArray[np.int64], count: int, missing: float) -> NDArray[Any]:
    every = np.full(count, missing, dtype=values.dtype)
    every[rows] = values
    return every


def _first_of_groups(own: NDArray[np.int64], order_by: Features, groups: int, count: int) -> list[NDArray[np.int64]]:
    """The rows of every group with the smallest values; one sort serves all groups."""
    order = np.lexsort((order_by, own))
    starts = np.searchsorted(own[order], np.arange(groups + 1))
    return [order[start : min(start + count, stop)] for start, stop in pairwise(starts)]


def packed(values: NDArray[Any], kind: str) -> bytes:
    """The bytes of an array, for a typed array of JavaScript."""
    return np.ascontiguousarray(values, dtype=kind).tobytes()
