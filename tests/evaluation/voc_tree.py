"""A tree in VOC's layout: textured rectangles on grey, with their boxes."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("aeroplane", "dog", "tvmonitor")
_OBJECT = """ <object><name>{name}</name><difficult>{difficult}</difficult>
  <bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"""


def write_voc(root: Path, *, seed: int = 0) -> Path:
    """4 images in VOC2007 trainval and in VOC2012 trainval, 4 in VOC2007 test: 12."""
    rng = np.random.default_rng(seed)
    for part, (year, word) in enumerate((("2007", "trainval"), ("2012", "trainval"), ("2007", "test"))):
        folder = root / "VOCdevkit" / f"VOC{year}"
        for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        names = [f"{part}{number:05d}" for number in range(4)]
        (folder / "ImageSets" / "Main" / f"{word}.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            _write_image(folder, name, rng)
    return root


def _write_image(folder: Path, name: str, rng: np.random.Generator) -> None:
    width, height = int(rng.integers(70, 100)), int(rng.integers(60, 90))
    pixels = rng.integers(110, 140, (height, width, 3), dtype=np.uint8)
    objects = []
    for number in range(2):
        kind = int(rng.integers(len(CLASSES)))
        left, top = int(rng.integers(1, width - 40)), int(rng.integers(1, height - 35))
        right, bottom = left + int(rng.integers(20, 38)), top + int(rng.integers(20, 33))
        pixels[top - 1 : bottom, left - 1 : right] = np.eye(3, dtype=np.uint8)[kind] * 220  # a colour a class
        objects.append(_OBJECT.format(name=CLASSES[kind], difficult=int(number == 1 and name.endswith("3")),
                                      left=left, top=top, right=right, bottom=bottom))  # fmt: skip
    Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
    text = "\n".join(objects)
    (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>\n{text}\n</annotation>\n")
