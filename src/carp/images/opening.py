"""Open the images of a command: with progress while they are found, and with notes on what was skipped."""

from pathlib import Path

from carp.console.progress import Display
from carp.images.open_source import open_source
from carp.images.source import Openable, Source


def open_images(
    data: Openable,
    display: Display,
    *,
    kind: str = "auto",
    root: str | Path | None = None,
    download: bool = False,
    index: Path | None = None,
) -> Source:
    """Open a source as `open_source` does, and show on `display` what happens meanwhile."""
    with display.counting("finding images", None) as progress:
        source = open_source(data, kind=kind, root=root, download=download, index=index, progress=progress)
    for note in source.notes:
        display.warn_once(note)
    return source
