"""A contact sheet of originals and their altered copies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from carp.images.decoding.decode import decode, read_file
from carp.report.pages.sheet import Sheet
from carp.report.pages.thumbnails import Picture, thumbnail

_ORIGINALS, _COLUMNS = 4, 11


def draw_attack_sheet(title: str, folder: Path, lists: Mapping[str, list[Any]], path: Path) -> None:
    """Draw a few originals, evenly spread over the manifest's lists, each with its copies."""
    originals = [entry["name"] for entry in lists["originals"]]
    spread = np.unique(np.linspace(0, len(originals) - 1, _ORIGINALS).round().astype(int))
    rows = []
    for original in (originals[i] for i in spread):
        copies = [entry for entry in lists["copies"] if entry["original"] == original]
        cells = [_picture(folder / original, "original")]
        cells += [_picture(folder / c["name"], f"{c['attack']} {c['strength']:g}") for c in copies]
        rows += [cells[i : i + _COLUMNS] for i in range(0, len(cells), _COLUMNS)]
    Sheet(title, rows).write(path)


def _picture(path: Path, caption: str) -> Picture:
    return Picture(thumbnail(decode(read_file(path), str(path))), caption)
