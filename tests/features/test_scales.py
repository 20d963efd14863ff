"""Features of whole images at several scales."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from carp.config import IMAGENET_MEAN, IMAGENET_STD
from carp.errors import CarpError, UnreadableImageError
from carp.features import scales as module
from carp.features.scales import THREE_SCALES, extract_scales, thumbnail_size
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource

CPU = torch.device("cpu")


class Means(nn.Module):
    """Mean colours of the four quarters and a convolution: any size in, 20 features out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.shapes = list[tuple[int, ...]]()

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        features = self.norm(self.conv(x)).relu().mean(dim=(2, 3))
        return torch.cat([F.adaptive_avg_pool2d(x, 2).flatten(1), features], dim=1)


def photos(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    draw = np.random.default_rng(0)
    for i, (height, width) in enumerate(sizes):
        coarse = Image.fromarray(draw.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return folder


def by_hand(encoder: nn.Module, image: Image.Image, factors: tuple[float, ...]) -> Any:
    """One image after the other, without batches."""
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    x = (x - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)
    with torch.no_grad():
        scaled = [x if s == 1 else F.interpolate(x, scale_factor=s, mode="bilinear") for s in factors]
        return torch.stack([encoder.eval()(part)[0] for part in scaled]).mean(dim=0).numpy()


SIZES = [(40, 60), (60, 40), (40, 60), (33, 57), (40, 60)]


@pytest.mark.parametrize("factors", [(1.0,), THREE_SCALES])
def test_against_one_image_at_a_time(tmp_path: Path, factors: tuple[float, ...]) -> None:
    encoder = Means()
    found = extract_scales(encoder, open_source(photos(tmp_path, SIZES)), device=CPU, scales=factors, batch_size=2)
    for i in range(len(SIZES)):
        with Image.open(tmp_path / f"{i}.png") as image:
            assert np.allclose(found[i], by_hand(encoder, image, factors), atol=1e-5)


@settings(max_examples=300, deadline=None)
@given(height=st.integers(1, 400), width=st.integers(1, 400), max_side=st.integers(1, 399))
def test_a_smaller_image_has_the_size_of_pillows_thumbnail(height: int, width: int, max_side: int) -> None:
    image = Image.new("L", (width, height))
    image.thumbnail((max_side, max_side))
    found = thumbnail_size(height, width, max_side) if max(height, width) > max_side else (height, width)
    assert found == (image.height, image.width)


def test_a_side_in_the_middle_is_rounded_as_pillow_does(tmp_path: Path) -> None:
    encoder = Means()
    for size in ((57, 90), (45, 51)):
        encoder.shapes.clear()
        folder = tmp_path / str(size)
        folder.mkdir()
        extract_scales(encoder, open_source(photos(folder, [size])), device=CPU, max_side=30)
        with Image.open(folder / "0.png") as image:
            image.thumbnail((30, 30), Image.Resampling.LANCZOS)
            assert encoder.shapes == [(1, 3, image.height, image.width)]


def test_images_of_one_size_are_encoded_together(tmp_path: Path) -> None:
    encoder, told = Means(), list[tuple[int, int]]()
    extract_scales(
        encoder, open_source(photos(tmp_path, SIZES)), device=CPU, progress=lambda *state: told.append(state)
    )
    assert sorted(shape[0] for shape in encoder.shapes) == [1, 1, 3]
    assert told[-1] == (5, 5)


def test_large_images_are_encoded_in_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(photos(tmp_path, [(40, 60)] * 5 + [(10, 10)] * 5))
    monkeypatch.setattr(module, "_PIXELS_AT_A_TIME", 5000)
    encoder = Means()
    extract_scales(encoder, source, device=CPU)
    assert [shape[0] for shape in encoder.shapes] == [2, 2, 1, 5]


def test_memory_is_bounded_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(photos(tmp_path, SIZES))
    together = extract_scales(Means(), source, device=CPU)
    monkeypatch.setattr(module, "_BYTES_AT_A_TIME", 1)
    monkeypatch.setattr(module, "_DECODED_AT_A_TIME", 2)
    encoder = Means()
    assert np.allclose(extract_scales(encoder, source, device=CPU), together, atol=1e-6)
    assert max(shape[0] for shape in encoder.shapes) == 1


def test_boxes_are_cut_first(tmp_path: Path) -> None:
    encoder = Means()
    source = open_source(photos(tmp_path, [(40, 60), (60, 40)]))
    boxes = np.array([[9.6, 4.4, 50.2, 38.0], [-5.0, 10.0, 99.0, 50.0]])
    found = extract_scales(encoder, source, device=CPU, boxes=boxes)
    for i, box in enumerate([(10, 4, 50, 38), (0, 10, 40, 50)]):
        with Image.open(tmp_path / f"{i}.png") as image:
            assert np.allclose(found[i], by_hand(encoder, image.crop(box), (1.0,)), atol=1e-5)


def test_sizes(tmp_path: Path) -> None:
    source = open_source(photos(tmp_path, [(40, 60), (20, 10)]))
    encoder = Means()
    extract_scales(encoder, source, device=CPU, max_side=30)
    assert encoder.shapes == [(1, 3, 20, 30), (1, 3, 20, 10)]  # smaller if need be, never larger, the shape is kept
    encoder = Means()
    extract_scales(encoder, source, device=CPU, max_side=30, boxes=np.array([[0, 0, 60, 10], [0, 0, 5, 5]]) * 1.0)
    assert encoder.shapes == [(1, 3, 5, 30), (1, 3, 5, 5)]
    encoder = Means()
    extract_scales(encoder, source, device=CPU, square=32)
    assert encoder.shapes == [(2, 3, 32, 32)]


def test_a_sliver_keeps_a_pixel() -> None:
    encoder = Means()
    images = np.zeros((1, 1, 9, 3), dtype=np.uint8)
    assert np.isfinite(extract_scales(encoder, ArraySource(images), device=CPU, scales=THREE_SCALES)).all()
    assert encoder.shapes == [(1, 3, 1, 9), (1, 3, 1, 6), (1, 3, 1, 4)]


def test_the_mode_of_the_encoder_is_kept() -> None:
    encoder = Means().train()
    before = encoder.norm.running_mean.clone()  # type: ignore[union-attr]
    extract_scales(encoder, ArraySource(np.zeros((2, 8, 8, 3), dtype=np.uint8)), device=CPU)
    assert encoder.training
    assert torch.equal(encoder.norm.running_mean, before)  # type: ignore[arg-type]


def test_an_image_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    photos(tmp_path, SIZES)
    (tmp_path / "2.png").write_bytes(b"no image")
    with pytest.raises(UnreadableImageError, match=r"2\.png"):
        extract_scales(Means(), open_source(tmp_path), device=CPU)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scales": ()}, "scales must be numbers above 0"),
        ({"scales": (1.0, -0.5)}, "scales must be numbers above 0"),
        ({"max_side": 0}, "max_side must be at least 1 pixel, received 0"),
        ({"boxes": np.zeros((1, 4))}, "every image needs a box"),
        ({"boxes": np.array([[90.0, 90, 99, 99]] * 2)}, r"array\[0\].*8×8"),
        ({"boxes": np.array([[np.nan, 0, 9, 9]] * 2)}, "must be 4 finite numbers"),
    ],
)
def test_mistakes(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CarpError, match=words):
        extract_scales(Means(), ArraySource(np.zeros((2, 8, 8, 3), dtype=np.uint8)), device=CPU, **change)


def test_an_encoder_for_one_size_only_is_told_in_a_line() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    images = ArraySource(np.zeros((1, 8, 10, 3), dtype=np.uint8))
    with pytest.raises(
        CarpError, match=r"cannot take an image of 10×8: .*needs an encoder for images of any size"
    ) as e:
        extract_scales(encoder, images, device=CPU)
    assert "\n" not in str(e.value)
