"""`carp views`: what the model sees of an image, as a picture."""

from pathlib import Path
from typing import Any

import numpy as np

from carp.config import SMALL_IMAGE, DataSettings, LoaderSettings, resolve_part
from carp.config.recipe import read_settings
from carp.console.progress import Display
from carp.errors import ConfigError, UnreadableImageError
from carp.files.outputs import check_output_file
from carp.images.decoding.decode import Stored, decode, pixel_limit, read_file
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.opening import open_images
from carp.images.source import Openable, Source
from carp.images.views.batch_views import batch_views
from carp.images.views.centre_crop import resize_and_crop
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import draw_views, view_kinds
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
    """Draw a sheet of an image, or of a few images of a data set, with the views that training makes of them.

    Args:
        data: An image file, or whatever `train` takes.
        recipe: Name of a recipe, or a YAML file; `folder` when None.
        out: The PNG to write.
        images: How many images of a data set, evenly spread over it.
        draws: How often the views of each are drawn, as in as many epochs.
        **overrides: Any setting of the configuration, as in `key=value` on the command line.

    Returns:
        The path of the PNG.
    """
    if Path(out).suffix.lower() != ".png":
        raise ConfigError(f"the sheet is a PNG: --out must end in .png, received {out}.")
    check_output_file(out)
    display = Display()
    values = read_settings(recipe, overrides)
    where = resolve_part(DataSettings, values)
    source = open_images(_as_source(data), display, kind=where.source, root=where.root, download=where.download)
    config = resolve_part(LoaderSettings, values, num_images=len(source))
    chosen = np.unique(np.linspace(0, len(source) - 1, images).round().astype(int))
    rows, unreadable = list[Row](), list[UnreadableImageError]()
    with pixel_limit(config.max_image_pixels):
        for index in map(int, chosen):
            try:
                rows += [_row(source, index, config, epoch) for epoch in range(draws)]
            except UnreadableImageError as error:
                unreadable.append(error)
    if not rows:
        raise unreadable[0]
    for problem in unreadable:
        display.warn(f"{problem} It is left out.")
    sizes = f"2 x {config.global_size} px"
    if config.local_views:
        sizes += f" + {config.local_views} x {config.local_size} px"
    write_views_sheet(f"{source.name}: {sizes}, recipe {recipe or 'folder'}, seed {config.seed}", rows, Path(out))
    return Path(out)


def _row(source: Source, index: int, config: LoaderSettings, epoch: int) -> Row:
    """The views of one image in one epoch, rendered as training renders them."""
    kinds, place, seed = view_kinds(config), source.place(index), config.seed
    stored = source.fetch(index)
    image = decode(stored, place)
    if config.global_size <= SMALL_IMAGE:
        image = resize_and_crop(image, config.global_size, config.global_size)
        batch = batch_views(image[None].copy(), kinds, seed=seed, epoch=epoch, indices=np.array([index]))
        made = [(255 * view[0]).round().byte() for view in batch]
    else:
        made = photo_views(stored, place, kinds, seed=seed, epoch=epoch, index=index)
    height, width, _ = image.shape
    return Row(
        caption=f"{place}   {width} x {height}, epoch {epoch}",
        image=image,
        boxes=draw_views(kinds, seed=seed, epoch=epoch, index=index, height=height, width=width).box,
        views=[view.permute(1, 2, 0).numpy() for view in made],
    )


def _as_source(data: Openable) -> Openable:
    """A single image file is a source of one image here; all else is what it is everywhere."""
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            return _OneImage(path)
    return data


class _OneImage(Source):
    """A source of one file."""

    fingerprint = ""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name

    def __len__(self) -> int:
        return 1

    def fetch(self, _index: int) -> Stored:
        """The bytes of the file."""
        return read_file(self.path)

    def place(self, _index: int) -> str:
        """Its path."""
        return str(self.path)
