"""Folders with known copies: real images, and altered copies of some of them."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from carp.random import key, uniforms

_COPIES = 17  # the stream of this benchmark
Draws = list[float]
Attack = Callable[[Image.Image, Draws], Image.Image | bytes]


def _jpeg(quality: int) -> Attack:
    def apply(image: Image.Image, _draws: Draws) -> bytes:
        return _file(image, quality)

    return apply


def _resize(factor: float) -> Attack:
    def apply(image: Image.Image, _draws: Draws) -> Image.Image:
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        return image.resize(size, Image.Resampling.BICUBIC)

    return apply


def _crop(percent: float) -> Attack:
    """Remove so much of the surface, at a random place."""

    def apply(image: Image.Image, draws: Draws) -> Image.Image:
        side = (1 - percent / 100) ** 0.5
        width, height = round(image.width * side), round(image.height * side)
        left, top = round(draws[0] * (image.width - width)), round(draws[1] * (image.height - height))
        return image.crop((left, top, left + width, top + height))

    return apply


def _rotate(degrees: float) -> Attack:
    def apply(image: Image.Image, draws: Draws) -> Image.Image:
        return image.rotate(degrees if draws[0] < 0.5 else -degrees, Image.Resampling.BICUBIC, expand=True)

    return apply


def _blur(image: Image.Image, _draws: Draws) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(0.01 * max(image.size)))


def _noise(image: Image.Image, draws: Draws) -> Image.Image:
    rng = np.random.default_rng(int(draws[0] * 2**53))
    pixels = np.array(image)
    return Image.fromarray((pixels + 25 * rng.standard_normal(pixels.shape)).round().clip(0, 255).astype(np.uint8))


def _colours(image: Image.Image, draws: Draws) -> Image.Image:
    """Brightness, contrast and saturation, each from 0.7 to 1.4."""
    for enhancer, draw in zip(
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), draws, strict=False
    ):
        image = enhancer(image).enhance(0.7 + 0.7 * draw)
    return image


def _text(image: Image.Image, draws: Draws) -> Image.Image:
    covered, size = image.copy(), max(8, image.height // 8)
    for line in range(2):
        place = (0.3 * draws[2 * line] * image.width, (line + draws[2 * line + 1]) / 2 * (image.height - size))
        font = ImageFont.load_default(size)
        ImageDraw.Draw(covered).text(place, "DO NOT SHARE", (255, 255, 255), font, stroke_width=1, stroke_fill="black")
    return covered


EASY: dict[str, Attack] = {
    "jpeg 75": _jpeg(75),
    "jpeg 50": _jpeg(50),
    "jpeg 30": _jpeg(30),
    "resize 150%": _resize(1.5),
    "resize 75%": _resize(0.75),
    "resize 50%": _resize(0.5),
    "crop 5%": _crop(5),
    "crop 10%": _crop(10),
    "crop 15%": _crop(15),
}
HARD: dict[str, Attack] = {
    "jpeg 10": _jpeg(10),
    "crop 30%": _crop(30),
    "crop 50%": _crop(50),
    "blur 1%": _blur,
    "noise 25": _noise,
    "colours": _colours,
    "mirrored": lambda image, _draws: ImageOps.mirror(image),
    "text": _text,
    "rotated 10°": _rotate(10),
}


def write_copies(
    originals: list[Path], attacks: dict[str, Attack], count: int, folder: Path, *, seed: int
) -> list[tuple[str, int, Path]]:
    """Write copies of `count` originals, drawn without repetition; the attacks take turns.

    Returns:
        Attack, number of the original and file of every copy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(uniforms(key(seed, _COPIES, np.arange(len(originals))), 1)[:, 0])[:count]
    made = []
    for turn, index in enumerate(int(i) for i in order):
        number = turn % len(attacks)
        name = list(attacks)[number]
        path = folder / f"{index:05d}-{name.replace(' ', '-').replace('%', '')}.jpg"
        if not path.exists():
            draws = uniforms(key(seed, _COPIES, index, number), 8).tolist()
            with Image.open(originals[index]) as image:
                copy = attacks[name](image.convert("RGB"), draws)
            path.write_bytes(copy if isinstance(copy, bytes) else _file(copy, 90))
        made.append((name, index, path))
    return made


def _file(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
