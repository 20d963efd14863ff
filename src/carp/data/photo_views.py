"""Views of one photograph at a time, with Pillow: what a loader worker does."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torchvision.transforms import functional as TF

from carp.data.view_parameters import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    ViewKind,
    ViewParameters,
    draw_view,
)

_ADJUST: dict[int, Callable[[Image.Image, float], Image.Image]] = {
    BRIGHTNESS: TF.adjust_brightness,
    CONTRAST: TF.adjust_contrast,
    SATURATION: TF.adjust_saturation,
    HUE: TF.adjust_hue,
}
_SOLARISE_ABOVE = 128


def photo_views(image: NDArray[np.uint8], kinds: list[ViewKind], *, seed: int, epoch: int, index: int) -> list[Tensor]:
    """All views of one image [H, W, 3], each a uint8 tensor [3, size, size]."""
    photo = Image.fromarray(image)
    views = []
    for view, kind in enumerate(kinds):
        drawn = draw_view(
            kind,
            seed=seed,
            epoch=epoch,
            indices=index,
            view=view,
            heights=photo.height,
            widths=photo.width,
        )
        pixels = np.array(_render(photo, kind.size, drawn))
        views.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous())
    return views


def _render(photo: Image.Image, size: int, drawn: ViewParameters) -> Image.Image:
    top, left, height, width = drawn.box[0]
    box = (int(left), int(top), int(left + width), int(top + height))
    view = photo.crop(box).resize((size, size), Image.Resampling.BICUBIC)  # `box=` would look beyond the box
    if drawn.flip[0]:
        view = ImageOps.mirror(view)
    if drawn.jitter[0]:
        for operation in drawn.order[0]:
            view = _ADJUST[int(operation)](view, float(drawn.factors[0, operation]))
    if drawn.grey[0]:
        view = TF.to_grayscale(view, num_output_channels=3)
    if drawn.blur[0]:
        view = view.filter(ImageFilter.GaussianBlur(float(drawn.sigma[0])))
    if drawn.solarise[0]:
        view = ImageOps.solarize(view, _SOLARISE_ABOVE)
    return view
