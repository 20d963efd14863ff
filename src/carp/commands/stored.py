"""Features of images for a command: found on disk, or extracted with a progress bar."""

import warnings
from pathlib import Path

from carp.commands.inputs import INDEX, warn_of
from carp.compute import distributed
from carp.console.progress import Display
from carp.encoders.load import Encoder
from carp.errors import CarpWarning
from carp.features.extract import Precision, left_out
from carp.features.store import Store
from carp.images.decoding.decode import pixel_limit
from carp.images.source import Openable, Source, open_source
from carp.runs.run_folder import is_run, open_run


def open_images(
    data: Openable, model: str | Path, display: Display, *, root: str | Path | None, download: bool
) -> Source:
    """Open images, with the `root` of the run where none is given. A run never makes others download anything."""
    index = None
    if is_run(model):
        root, index = root or open_run(model).config.root, Path(model) / INDEX
    with display.counting("finding images", None) as progress:
        source = open_source(data, root=root, download=download, index=index, progress=progress)
    warn_of(source, display)
    return source


def store_features(
    encoder: Encoder,
    source: Source,
    folder: Path,
    display: Display,
    *,
    precision: Precision = "fp32",
    batch_size: int = 256,
) -> Store:
    """The features of a source in a folder; tells of images that cannot be read."""
    what = ", ".join(part for part in (encoder.branch, source.name) if part)
    with pixel_limit(encoder.max_pixels), display.counting(what, len(source)) as progress:
        store = encoder.store(source, folder, precision=precision, batch_size=batch_size, progress=progress)
    if note := left_out(store.unreadable, len(store.features), source.name):
        if not display.console.quiet:
            display.warn_once(note)
        elif distributed.rank() == 0:
            warnings.warn(note, CarpWarning, stacklevel=4)
    return store
