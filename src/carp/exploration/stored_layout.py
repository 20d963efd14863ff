"""A map that is kept beside its features, so that it is laid out once."""

import json
from pathlib import Path

import numpy as np

from carp.exploration.layout import Layout
from carp.files.atomic import replacing

MAP = "map.bin"  # beside the features: a line with the origin and the method, then the points as npy
_MOST_WORDS = 4096


def read_layout(folder: Path, origin: str, count: int) -> Layout | None:
    """The map in a folder; None if there is none, or if it is damaged or of other features.

    Args:
        folder: That of the features.
        origin: The key of their origin.
        count: The number of images.
    """
    try:
        with (folder / MAP).open("rb") as file:
            about = json.loads(file.readline(_MOST_WORDS))
            points = np.load(file, allow_pickle=False)
        fits = about["origin"] == origin and points.shape == (count, 2) and points.dtype == np.float32
        return Layout(points, str(about["method"])) if fits and np.isfinite(points).all() else None
    except Exception:  # a damaged header raises nearly anything, and the map can be made again
        return None


def write_layout(folder: Path, origin: str, layout: Layout) -> bool:
    """Keep a map in a folder; return whether that was possible."""
    try:
        with replacing(folder / MAP) as beside, beside.open("wb") as file:
            file.write(json.dumps({"origin": origin, "method": layout.method}).encode() + b"\n")
            np.save(file, layout.points)
    except OSError:  # features may be on a disk that cannot be written to
        return False
    return True
