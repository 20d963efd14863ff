"""The page of `carp label`: predictions class by class, images to label next, labels that look wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carp.exploration.label_advice import DoubtfulLabel
from carp.exploration.label_prediction import LabelPrediction
from carp.features.stored_images import StoredImages
from carp.report.pages.template import Fact, ShownPicture, asset, shown_picture, write_page
from carp.report.pages.thumbnails import GREEN, Picture, thumbnail_of

_SIDE = 112
_PICTURES = 2400  # on a page
_MOST, _FEWEST, _DOUBTFUL = 7, 2, 4
_MOST_DOUBTFUL = 48


@dataclass(frozen=True)
class Contradicted:
    """An image whose given label looks wrong."""

    row: int
    given: int
    found: DoubtfulLabel


@dataclass(frozen=True)
class LabelledImages:
    """What the page shows; rows are those of the feature store."""

    name: str
    prediction: LabelPrediction
    classes: Sequence[str]
    given: Mapping[int, int]
    """Rows with a given label, and its class."""
    others: int
    """Labelled images that are not among the images."""
    places: Sequence[str]
    images: StoredImages
    suggestions: Sequence[int]
    doubtful: Sequence[Contradicted]
    method: str

    def label_of(self, row: int) -> str:
        """The given label of an image, or the predicted one."""
        return self.classes[self.given.get(row, int(self.prediction.classes[row]))]

    def certainty_of(self, row: int) -> float:
        """Probability of the prediction; 1 for a given label."""
        return 1.0 if row in self.given else float(self.prediction.certainty[row])


@dataclass(frozen=True)
class _Card:
    number: int
    title: str
    given: int
    size: int
    certainty: float
    sure: list[ShownPicture]
    unsure: list[ShownPicture]


def write_labels_page(path: Path, found: LabelledImages) -> None:
    """Write the page."""
    certainty = found.prediction.certainty
    free = np.ones(len(found.places), dtype=bool)
    free[list(found.given)] = False
    each = int(np.clip(_PICTURES // len(found.classes) - _DOUBTFUL, _FEWEST, _MOST))
    cards = []
    for number, name in enumerate(found.classes):
        rows = np.flatnonzero(free & (found.prediction.classes == number))
        order = rows[np.argsort(-certainty[rows], kind="stable")]
        cards.append(
            _Card(
                number=number,
                title=name,
                given=sum(label == number for label in found.given.values()),
                size=len(rows),
                certainty=float(certainty[rows].mean()) if len(rows) else 0.0,
                sure=[_picture(found, row, f"{certainty[row]:.0%}") for row in order[:each].tolist()],
                unsure=[_picture(found, row, f"{certainty[row]:.0%}") for row in order[each:][-_DOUBTFUL:].tolist()],
            )
        )
    write_page(
        path,
        "labels.html",
        title=f"Labels of {found.name}",
        notes=[found.method],
        contents=[
            *([("doubtful", "Labels that look wrong")] if found.doubtful else []),
            *([("suggestions", "Label these next")] if found.suggestions else []),
            ("classes", "Predictions"),
        ],
        scripts=[asset("sort.js")],
        facts=_facts(found, certainty[free]),
        methods=found.prediction.methods,
        chosen=found.prediction.method,
        suggestions=[
            _picture(found, row, f"{found.classes[found.prediction.classes[row]]}, {certainty[row]:.0%}")
            for row in found.suggestions
        ],
        doubtful=[
            _picture(
                found,
                each.row,
                f"given {found.classes[each.given]}",
                f"predicted {found.classes[each.found.predicted]}, {each.found.probability:.0%}",
            )
            for each in found.doubtful[:_MOST_DOUBTFUL]
        ],
        cards=cards,
    )


def _picture(found: LabelledImages, row: int, head: str, line: str = "") -> ShownPicture:
    place = found.places[row]
    image = thumbnail_of(found.images, row, place, _SIDE, enlarge=False)
    lines = (*([line] if line else []), Path(place).name)
    return shown_picture(Picture(image, head, lines, GREEN if row in found.given and not line else None, place))


def _facts(found: LabelledImages, certainty: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[Fact]:
    best = found.prediction.method
    others = f"{found.others:,} of them are other images" if found.others else ""
    facts = [
        Fact("images", f"{len(found.places):,}"),
        Fact("labels given", f"{len(found.given) + found.others:,}", others),
        Fact("classes", f"{len(found.classes):,}"),
    ]
    if best is not None:
        facts.append(Fact("held-out accuracy", f"{best.accuracy:.1%}", best.name))
        facts.append(Fact("calibration error", f"{best.calibration_error:.1%}", "of held-out labels"))
    if len(certainty):
        sure = (certainty >= 0.9).mean()
        facts.append(Fact("mean certainty", f"{certainty.mean():.0%}", f"{sure:.0%} are 90% or more"))
    return facts
