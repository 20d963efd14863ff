"""Datasets as their authors lay them out, with four images of two classes in each part: class 0, 1, 0, 1.

Image `i` of a part is grey: `grey(part, i)`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

PARTS = ("train", "test")


def grey(part: str, i: int) -> int:
    """The value of all pixels."""
    return 20 * i + (100 if part == "test" else 0)


def save(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, dtype=np.uint8)).save(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    for part, word in zip(PARTS, ("trainval", "test"), strict=True):
        names = [f"{('Abyssinian', 'beagle')[i % 2]}_{part}{i}" for i in range(4)]
        lines = [f"{name} {i % 2 + 1} {i % 2 + 1} 1\n" for i, name in enumerate(names)]
        write(folder / "annotations" / f"{word}.txt", "".join(lines))
        for i, name in enumerate(names):
            save(folder / "images" / f"{name}.jpg", grey(part, i))


def flowers(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "flowers-102"
    for first, part in zip((1, 5), PARTS, strict=True):
        for i in range(4):
            save(folder / "jpg" / f"image_{first + i:05d}.jpg", grey(part, i))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2] * 4])})
    savemat(folder / "setid.mat", {"trnid": [[1, 2, 3, 4]], "valid": [[1]], "tstid": [[5, 6, 7, 8]]})


def aircraft(root: Path) -> None:
    folder = root / "fgvc-aircraft-2013b" / "data"
    write(folder / "variants.txt", "707-320\n727-200 B\n")
    for first, (part, word) in zip((10, 20), zip(PARTS, ("trainval", "test"), strict=True), strict=True):
        lines = [f"00{first + i} {('707-320', '727-200 B')[i % 2]}\n" for i in range(4)]
        write(folder / f"images_variant_{word}.txt", "".join(lines))
        for i in range(4):
            save(folder / "images" / f"00{first + i}.jpg", grey(part, i))


def cars(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi", "BMW"], dtype=object)})
    labels = np.array([(f"{i}.jpg", i % 2 + 1) for i in range(4)], dtype=[("fname", object), ("class", object)])
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": labels})
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": labels})
    for part in PARTS:
        for i in range(4):
            save(folder / f"cars_{part}" / f"{i}.jpg", grey(part, i))


def country211(root: Path) -> None:
    for part in (*PARTS, "valid"):
        for place, i in enumerate((0, 2, 1, 3)):  # images of one class stand together
            save(root / "country211" / part / "AB"[place // 2] / f"{i}.jpg", grey(part, i))


def food101(root: Path) -> None:
    for part in PARTS:
        names = {word: [f"{word}/{part}{i}" for i in (c, c + 2)] for c, word in enumerate(("apple_pie", "waffles"))}
        write(root / "food-101" / "meta" / f"{part}.json", json.dumps(names))
        for i in range(4):
            save(root / "food-101" / "images" / ("apple_pie", "waffles")[i % 2] / f"{part}{i}.jpg", grey(part, i))


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    write(folder / "class_names.txt", "airplane\nbird\n")
    for part in PARTS:
        values = np.array([grey(part, i) for i in range(4)], dtype=np.uint8)
        np.broadcast_to(values[:, None], (4, 3 * 96 * 96)).tofile(folder / f"{part}_X.bin")
        np.array([1, 2, 1, 2], dtype=np.uint8).tofile(folder / f"{part}_y.bin")


def gtsrb(root: Path) -> None:
    folder = root / "gtsrb"
    for i in range(4):
        save(folder / "GTSRB" / "Training" / f"{i % 2:05d}" / f"{i}.ppm", grey("train", i))
        save(folder / "GTSRB" / "Final_Test" / "Images" / f"{i}.ppm", grey("test", i))
    write(folder / "GT-final_test.csv", "Filename;Width;ClassId\n" + "".join(f"{i}.ppm;8;{i % 2}\n" for i in range(4)))


def dtd(root: Path) -> None:
    folder = root / "dtd" / "dtd"
    (folder / "imdb").mkdir(parents=True)
    for part in PARTS:
        names = [f"{('banded', 'woven')[i % 2]}/{part}{i}.jpg" for i in range(4)]
        write(folder / "labels" / f"{part}1.txt", "".join(f"{name}\n" for name in names))
        for i, name in enumerate(names):
            save(folder / "images" / name, grey(part, i))


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "pets": pets,
    "flowers": flowers,
    "aircraft": aircraft,
    "cars": cars,
    "country211": country211,
    "food101": food101,
    "stl10": stl10,
    "gtsrb": gtsrb,
    "dtd": dtd,
}
