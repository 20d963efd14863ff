"""A folder of datasets in which some of the paper's are a few tiny images, and rows that expect no more of them."""

import pickle
from pathlib import Path

import pytest
from PIL import Image

from carp.images.sources.paper.split_lists import VOC_CLASSES
from tests.helpers import tiny_images, write_images
from tests.images.test_paper_datasets import resize_row

TRAIN, TEST, CLASSES = 24, 9, 3
IMAGES, QUERIES = 6, 2  # of a search
ORIGINALS, COPIES = 4, 3
PRESENT = ("pets", "gtsrb", "cifar10")  # k-NN; k-NN and k-means; k-means


def write_root(root: Path) -> Path:
    """Three datasets as folders of classes."""
    for seed, name in enumerate(PRESENT):
        size = 32 + seed  # so that two datasets differ in the sizes of their files
        write_images(root / name / "train", tiny_images(TRAIN, size, seed=seed), classes=CLASSES)
        write_images(root / name / "test", tiny_images(TEST, size, seed=seed + 10), classes=CLASSES)
    return root


def write_others(root: Path) -> Path:
    """Revisited Oxford, Copydays and VOC 2007 as they are published."""
    oxford = root / "roxford5k"
    _save(oxford / "jpg", [f"all_{i}" for i in range(IMAGES + QUERIES)], seed=20)
    truth = {
        "imlist": [f"all_{i}" for i in range(IMAGES)],
        "qimlist": [f"all_{IMAGES + i}" for i in range(QUERIES)],
        "gnd": [{"bbx": [0, 0, 9, 9], "easy": [i], "hard": [i + 2], "junk": [5]} for i in range(QUERIES)],
    }
    (oxford / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth))
    _save(root / "copydays" / "original", [f"20{i:02d}00" for i in range(ORIGINALS)], seed=21)
    _save(root / "copydays" / "strong", [f"20{i:02d}01" for i in range(COPIES)], seed=22)
    voc = root / "VOCdevkit" / "VOC2007"
    for seed, part in enumerate(("trainval", "test")):
        names = [f"{seed}{i:05d}" for i in range(2 * len(VOC_CLASSES))]
        _save(voc / "JPEGImages", names, seed=30 + seed)
        for folder in ("Annotations", "ImageSets/Main"):
            (voc / folder).mkdir(parents=True, exist_ok=True)
        (voc / "ImageSets" / "Main" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
        for name, kind in zip(names, 2 * VOC_CLASSES, strict=True):
            shown = f"<object><name>{kind}</name><difficult>0</difficult></object>"
            (voc / "Annotations" / f"{name}.xml").write_text(f"<annotation>{shown}</annotation>")
    return root


def _save(folder: Path, names: list[str], *, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels in zip(names, tiny_images(len(names), seed=seed), strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.jpg")


def shrink_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table of datasets have the sizes of these."""
    for name in PRESENT:
        resize_row(monkeypatch, name, TRAIN, TEST, CLASSES)
    resize_row(monkeypatch, "roxford5k", IMAGES, QUERIES, 0)
    resize_row(monkeypatch, "copydays", ORIGINALS, COPIES, 0)
    resize_row(monkeypatch, "voc07", 2 * len(VOC_CLASSES), 2 * len(VOC_CLASSES), len(VOC_CLASSES))


def main() -> None:
    """The command line with such rows, as a process of its own."""
    from carp.cli import main as command_line

    shrink_rows(pytest.MonkeyPatch())
    command_line()


if __name__ == "__main__":
    main()
