"""Altered copies of images, as they occur in practice: compressed, cropped, covered, rotated, printed, scanned.

The random numbers of a copy are a hash of (seed, image, attack, strength), so an interrupted run resumes with
the same copies.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from carp.images.decoding.decode import Pixels
from carp.random import Purpose, key, uniforms

MANIFEST = "manifest.json"
QUALITY = 90  # of the copies as JPEGs, except those of the attack `jpeg`
_ROWS_AT_A_TIME = 256
_WORDS = ("COPY", "SAMPLE", "breaking news", "follow for more", "DO NOT SHARE", "wow!", "12.08.2021", "when you see it")

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """A way to alter an image, with strengths from mild to hard."""

    number: int  # part of the hash, so it never changes
    strengths: tuple[float, ...]
    apply: Callable[["Material", float], Pixels]


@dataclass(frozen=True)
class Material:
    """The inputs of an attack."""

    pixels: Pixels
    stream: NDArray[np.uint64]  # the key of its random numbers
    other: Callable[[float], Pixels]  # another image of the set, chosen by a number in [0, 1)

    @property
    def draws(self) -> Values:
        """Sixteen numbers in [0, 1)."""
        return uniforms(self.stream, 16)


def _as_it_is(material: Material, _quality: float) -> Pixels:
    return material.pixels  # `attacked` sets the quality of the file


def _crop(material: Material, percent: float) -> Pixels:
    """Remove this share of the area at a random position, keeping the aspect ratio."""
    height, width, _ = material.pixels.shape
    side = np.sqrt(1 - percent / 100)
    new_height, new_width = max(1, round(height * side)), max(1, round(width * side))
    top, left = (
        int(u * (n + 1)) for u, n in zip(material.draws, (height - new_height, width - new_width), strict=False)
    )
    return material.pixels[top : top + new_height, left : left + new_width]


def _resize(material: Material, percent: float) -> Pixels:
    height, width, _ = material.pixels.shape
    size = (max(1, round(width * percent / 100)), max(1, round(height * percent / 100)))
    return np.array(Image.fromarray(material.pixels).resize(size, Image.Resampling.BICUBIC))


def _blur(material: Material, percent: float) -> Pixels:
    return _blurred(material.pixels, max(material.pixels.shape[:2]) * percent / 100)


def _blurred(pixels: Pixels, sigma: float) -> Pixels:
    return np.asarray(cv2.GaussianBlur(pixels, (0, 0), max(sigma, 0.1)), dtype=np.uint8)


def _noise(material: Material, deviation: float) -> Pixels:
    return _noisy(material.pixels, deviation, material.stream)


def _noisy(pixels: Pixels, deviation: float, stream: NDArray[np.uint64]) -> Pixels:
    """Add normal noise to every value, a few rows at a time: a photograph has tens of millions of values."""
    height, width, _ = pixels.shape
    noisy = np.empty_like(pixels)
    for top in range(0, height, _ROWS_AT_A_TIME):
        rows = np.arange(top, min(top + _ROWS_AT_A_TIME, height))
        u = uniforms(key(stream, rows), 6 * width)  # two per value, for the Box–Muller transform
        radius, turn = np.sqrt(-2 * np.log1p(-u[:, : 3 * width])), u[:, 3 * width :]
        normal = (radius * np.cos(2 * np.pi * turn)).reshape(len(rows), width, 3)
        noisy[rows] = np.rint(pixels[rows] + deviation * normal).clip(0, 255)
    return noisy


def _text(material: Material, lines: float) -> Pixels:
    """Draw lines of text across the image, white with a dark edge, as large as fits."""
    image = Image.fromarray(material.pixels)
    draw = ImageDraw.Draw(image)
    for line, (u_size, u_words, u_left, u_top) in enumerate(uniforms(material.stream, 4 * int(lines)).reshape(-1, 4)):
        words, size = _WORDS[int(u_words * len(_WORDS))], max(8, round(image.height * (0.08 + 0.08 * u_size)))
        edge = size // 12 + 1
        fits = (image.width - 2 * edge) / draw.textlength(words, ImageFont.load_default(size))
        size = max(8, int(size * min(1.0, fits)))
        font = ImageFont.load_default(size)
        left = edge + u_left * max(0.0, image.width - 2 * edge - draw.textlength(words, font))
        top = (line + u_top) / lines * (image.height - size)
        draw.text((left, top), words, (255, 255, 255), font, stroke_width=edge, stroke_fill=(20, 20, 20))
    return np.array(image)


def _overlay(material: Material, percent: float) -> Pixels:
    """Cover part of the image with another one."""
    height, width, _ = material.pixels.shape
    draws = material.draws
    side = np.sqrt(percent / 100)
    size = (max(1, round(width * side)), max(1, round(height * side)))
    top, left = (int(u * (n + 1)) for u, n in zip(draws[1:3], (height - size[1], width - size[0]), strict=True))
    covered = material.pixels.copy()
    patch = Image.fromarray(material.other(float(draws[0]))).resize(size, Image.Resampling.BICUBIC)
    covered[top : top + size[1], left : left + size[0]] = np.array(patch)
    return covered


def _rotate(material: Material, degrees: float) -> Pixels:
    """Rotate in a random direction, on a canvas that holds the whole image; the corners are black."""
    signed = degrees if material.draws[0] < 0.5 else -degrees
    return np.array(Image.fromarray(material.pixels).rotate(signed, Image.Resampling.BICUBIC, expand=True))


def _print_and_scan(material: Material, level: float) -> Pixels:
    """Imitate a scan of a print: perspective, uneven light, pale colours, blur, then grain."""
    height, width, _ = material.pixels.shape
    draws = material.draws
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float32)
    inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    moved = corners + 0.06 * level * draws[:8].reshape(4, 2) * inwards * np.array([width, height])
    matrix = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    warped = cv2.warpPerspective(material.pixels, matrix, (width, height), borderValue=(235, 232, 225))
    angle = 2 * np.pi * draws[8]
    y, x = np.linspace(-1, 1, height)[:, None, None], np.linspace(-1, 1, width)[None, :, None]
    light = 1 + 0.15 * level * (np.cos(angle) * x + np.sin(angle) * y)
    tint = np.array([1.0, 0.97, 0.9]) ** (level * draws[9])
    faded = (20 * level + (1 - 0.12 * level) * np.asarray(warped)) * light * tint
    blurred = _blurred(np.rint(faded).clip(0, 255).astype(np.uint8), 0.0025 * level * max(height, width))
    return _noisy(blurred, 4.0 * level, material.stream)


ATTACKS: dict[str, Attack] = {
    "jpeg": Attack(1, (75, 50, 30, 20, 15, 10, 8, 5, 3), _as_it_is),  # quality of the JPEG
    "crop": Attack(2, (10, 15, 20, 30, 40, 50, 60, 70, 80), _crop),  # percent of the area that is removed
    "resize": Attack(3, (75, 50, 25), _resize),  # percent of the sides
    "blur": Attack(4, (0.5, 1, 2, 3), _blur),  # standard deviation in percent of the longer side
    "noise": Attack(5, (10, 25, 50), _noise),  # standard deviation in grey values of 255
    "text": Attack(6, (1, 3, 5), _text),  # lines of text
    "overlay": Attack(7, (10, 25, 50), _overlay),  # percent of the area that another image covers
    "rotate": Attack(8, (5, 15, 45, 90, 180), _rotate),  # degrees, to the left or to the right
    "print-scan": Attack(9, (1, 2, 3), _print_and_scan),  # level of warp, blur, light and noise
}


def stream_of(seed: int, index: int, name: str, strength: float) -> NDArray[np.uint64]:
    """Return the key of the random numbers of one copy."""
    attack = ATTACKS[name]
    return key(seed, Purpose.ATTACK, index, attack.number, attack.strengths.index(strength))


def chosen_strength(seed: int, index: int, name: str) -> float:
    """Return the strength of an attack that the seed chooses for an image."""
    attack = ATTACKS[name]
    draw = uniforms(key(seed, Purpose.ATTACK, index, attack.number, len(attack.strengths)), 1)[0]
    return attack.strengths[int(draw * len(attack.strengths))]


def attacked(
    pixels: Pixels, name: str, strength: float, *, seed: int, index: int, other: Callable[[float], Pixels]
) -> bytes:
    """Return an altered copy of an image [H, W, 3], as the bytes of a JPEG file.

    Args:
        pixels: The image, upright.
        name: One of `ATTACKS`.
        strength: One of its strengths.
        seed: The seed of the whole set.
        index: The number of the image in its source.
        other: Returns another image for a number in [0, 1); used by `overlay`.
    """
    material = Material(pixels, stream_of(seed, index, name, strength), other)
    copy = Image.fromarray(np.ascontiguousarray(ATTACKS[name].apply(material, strength)))
    file = io.BytesIO()
    copy.save(file, "JPEG", quality=int(strength) if name == "jpeg" else QUALITY)
    return file.getvalue()
