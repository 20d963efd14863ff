"""Images made for each defect are found, and good images are not."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from carp.advice.image_quality import DEFECTS, measure

Picture = NDArray[np.uint8]


def photograph(seed: int = 0, width: int = 160, height: int = 120) -> Picture:
    """Coloured shapes with sharp edges on a background of detail at several scales, as photographs have."""
    random = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), dtype=np.float32)
    for scale in (2, 8, 32):
        grain = random.uniform(0, 1, (max(1, height // scale), max(1, width // scale), 3)).astype(np.float32)
        picture += cv2.resize(grain, (width, height), interpolation=cv2.INTER_CUBIC) * scale**0.5 * 20
    for _ in range(6):
        corner = tuple(int(x) for x in random.integers(0, (width, height)))
        colour = tuple(float(x) for x in random.uniform(0, 255, 3))
        cv2.circle(picture, corner, int(random.integers(2, min(width, height) // 4)), colour, -1)
    return np.clip(picture, 0, 255).astype(np.uint8)


def found_in(pictures: list[Picture]) -> list[set[str]]:
    """The defects of every picture."""
    measured = [measure(picture) for picture in pictures]
    severities = {defect.name: defect.severity(measured) for defect in DEFECTS}
    return [{name for name, severity in severities.items() if severity[i] > 0} for i in range(len(pictures))]


def blurred(picture: Picture, share: float = 0.025) -> Picture:
    return cv2.GaussianBlur(picture, (0, 0), share * max(picture.shape[:2])).astype(np.uint8)


def moved(picture: Picture) -> Picture:
    return cv2.blur(picture, (25, 1)).astype(np.uint8)


def darkened(picture: Picture) -> Picture:
    return (picture * 0.25).astype(np.uint8)


def washed_out(picture: Picture) -> Picture:
    return (247 + picture / 255 * 8).astype(np.uint8)


def dots(picture: Picture) -> Picture:
    empty = np.full_like(picture, 90)
    empty[::30, ::30] = 255
    return empty


def enlarged(picture: Picture) -> Picture:
    return cv2.resize(picture, None, fx=4, fy=4, interpolation=cv2.INTER_NEAREST).astype(np.uint8)


def strip(picture: Picture) -> Picture:
    return picture[:40]


def without_colour(picture: Picture) -> Picture:
    return np.repeat(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (blurred, "blurry"),
        (moved, "blurry"),
        (darkened, "dark"),
        (washed_out, "bright"),
        (dots, "low information"),
        (enlarged, "odd size"),
        (strip, "odd shape"),
        (without_colour, "grey"),
    ],
)
def test_a_defect_is_found(spoil: Callable[[Picture], Picture], expected: str) -> None:
    """Each is one of several ordinary pictures, which define the ordinary size, and none of which is flagged."""
    pictures = [photograph(seed) for seed in range(9)]
    pictures[4] = spoil(pictures[4])
    flags = found_in(pictures)
    assert expected in flags[4]
    assert not set().union(*(flags[i] for i in range(9) if i != 4))
    assert flags[4] - {"grey"} == {expected} - {"grey"}  # washed-out pictures have lost their colours, too


def test_good_images_are_not_flagged() -> None:
    """Of many sizes and shapes, night scenes with a lamp, objects on white, and high contrast."""
    night, product = (photograph(20) * 0.2).astype(np.uint8), np.full((120, 160, 3), 255, dtype=np.uint8)
    night[40:60, 60:80] = 250
    product[30:90, 50:110] = photograph(21)[30:90, 50:110]
    sizes = [(160, 120), (120, 160), (300, 200), (100, 220), (64, 64), (32, 32), (400, 300)]
    pictures = [photograph(i, *size) for i, size in enumerate(sizes)]
    assert found_in([*pictures[:4], night, product]) == [set()] * 6
    assert all(not flags - {"odd size"} for flags in found_in(pictures))


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 500, 3), (3, 2, 3), (500, 2, 3)])
def test_tiny_images_can_be_measured(shape: tuple[int, ...]) -> None:
    quality = measure(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    assert (quality.height, quality.width) == shape[:2]
    assert quality.blur == 0.0


def test_large_images_are_judged_as_small_ones() -> None:
    """The same scene from a better camera is no blurrier, although neighbouring pixels are more alike."""
    small = photograph(3)
    large = cv2.resize(small, None, fx=8, fy=8, interpolation=cv2.INTER_CUBIC).astype(np.uint8)
    assert measure(large).blur == pytest.approx(measure(small).blur, abs=0.15)
    assert measure(large).bits == pytest.approx(measure(small).bits, abs=0.3)
