"""Views of single images for inspection, rendered exactly as in training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carp.config import SMALL_IMAGE, LoaderSettings
from carp.images.decoding.decode import Pixels, decode
from carp.images.source import Source
from carp.images.views.batch_views import batch_views
from carp.images.views.centre_crop import resize_and_crop
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import draw_views, view_kinds


@dataclass(frozen=True)
class RenderedViews:
    """An image and its views in one epoch.

    Attributes:
        image: The image [H, W, 3], upright.
        boxes: Top, left, height and width of each view in the image, [V, 4].
        views: V views [S, S, 3]; the first two are global.
    """

    image: Pixels
    boxes: NDArray[np.int64]
    views: list[Pixels]


def render_views(source: Source, index: int, config: LoaderSettings, epoch: int) -> RenderedViews:
    """Draw and render the views that an image has in an epoch."""
    kinds, place, seed = view_kinds(config), source.place(index), config.seed
    stored = source.fetch(index)
    image = decode(stored, place)
    if config.global_size <= SMALL_IMAGE:
        image = resize_and_crop(image, config.global_size, config.global_size)
        batch = batch_views(image[None].copy(), kinds, seed=seed, epoch=epoch, indices=np.array([index]))
        views = [(255 * view[0]).round().byte() for view in batch]
    else:
        views = photo_views(stored, place, kinds, seed=seed, epoch=epoch, index=index)
    height, width, _ = image.shape
    boxes = draw_views(kinds, seed=seed, epoch=epoch, index=index, height=height, width=width).box
    return RenderedViews(image, boxes, [view.permute(1, 2, 0).numpy() for view in views])
