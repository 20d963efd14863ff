"""`carp views`: a contact sheet of images and their training views."""

from pathlib import Path
from typing import Any

import numpy as np

from carp.config import DataSettings, LoaderSettings, resolve_part
from carp.console.progress import Display
from carp.encoders.starting_point import settings_with_start
from carp.errors import ConfigError, UnreadableImageError
from carp.files.outputs import check_output_file
from carp.images.decoding.decode import pixel_limit
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.inspect.rendered_views import render_views
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.images.sources.given_images import GivenImages
from carp.report.pages.views_sheet import Row, write_views_sheet


def views(
    data: Openable,
    recipe: str | Path | None = None,
    *,
    out: str | Path = "views.png",
    images: int = 3,
    draws: int = 2,
    **overrides: Any,
) -> Path:
    """Draw a contact sheet of one image, or of a few images of a source, with the views that training would use.

    Args:
        data: An image file, or any image source that `train` accepts.
        recipe: Name of a recipe, or a YAML file; `folder` if None.
        out: The output file, a PNG.
        images: The number of images, evenly spread over the source.
        draws: The number of epochs whose views are drawn.
        **overrides: Any setting of the configuration.

    Returns:
        The path of the PNG.
    """
    if Path(out).suffix.lower() != ".png":
        raise ConfigError(f"the sheet is a PNG: --out must end in .png, received {out}.")
    check_output_file(out)
    display, values = Display(), settings_with_start(recipe, overrides)
    where = resolve_part(DataSettings, values)
    source = open_images(
        _one_image(data) or data,
        display,
        kind=where.source,
        root=where.root,
        download=where.download,
        cache_gb=where.cache_gb,
    )
    config = resolve_part(LoaderSettings, values, num_images=len(source))
    rows, unreadable = list[Row](), list[UnreadableImageError]()
    with pixel_limit(config.max_image_pixels):
        for index in map(int, np.unique(np.linspace(0, len(source) - 1, images).round().astype(int))):
            try:
                rows += [_row(source, index, config, epoch) for epoch in range(draws)]
            except UnreadableImageError as error:
                unreadable.append(error)
    if not rows:
        raise unreadable[0]
    for problem in unreadable:
        display.warn(f"{problem} It is skipped.")
    sizes = f"2 x {config.global_size} px"
    if config.local_views:
        sizes += f" + {config.local_views} x {config.local_size} px"
    write_views_sheet(f"{source.name}: {sizes}, recipe {recipe or 'folder'}, seed {config.seed}", rows, Path(out))
    return Path(out)


def _row(source: Source, index: int, config: LoaderSettings, epoch: int) -> Row:
    made = render_views(source, index, config, epoch)
    height, width, _ = made.image.shape
    caption = f"{source.place(index)}   {width} x {height}, epoch {epoch}"
    return Row(caption, made.image, made.boxes, made.views)


def _one_image(data: Openable) -> Source | None:
    """Return a source of one image, if the data are an image file: elsewhere that is an error."""
    path = Path(data).expanduser() if isinstance(data, str | Path) else None
    if path is None or path.suffix.lower() not in SUFFIXES or not path.is_file():
        return None
    return GivenImages([path], name=path.name)
