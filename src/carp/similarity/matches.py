"""The result of a search: for every query image, the images that are most similar to it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Match:
    """One image that was found."""

    similarity: float
    """Cosine of the features, at most 1."""
    place: str
    """Path of the image, or its name within an archive."""
    row: int
    """Its row in the feature store."""


@dataclass(frozen=True)
class Found:
    """A query image and the images that are most similar to it, best first."""

    query: str
    matches: list[Match]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "image": self.query,
            "results": [
                {"rank": rank, "similarity": round(match.similarity, 6), "image": match.place, "row": match.row}
                for rank, match in enumerate(self.matches, start=1)
            ],
        }
