"""A folder of datasets in which some of the paper's are a few tiny images, and rows that expect no more of them."""

from pathlib import Path

import pytest

from tests.helpers import tiny_images, write_images
from tests.images.test_paper_datasets import resize_row

TRAIN, TEST, CLASSES = 24, 9, 3
PRESENT = ("pets", "gtsrb", "cifar10")  # k-NN; k-NN and k-means; k-means


def write_root(root: Path) -> Path:
    """Three datasets as folders of classes."""
    for seed, name in enumerate(PRESENT):
        size = 32 + seed  # so that two datasets differ in the sizes of their files
        write_images(root / name / "train", tiny_images(TRAIN, size, seed=seed), classes=CLASSES)
        write_images(root / name / "test", tiny_images(TEST, size, seed=seed + 10), classes=CLASSES)
    return root


def shrink_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table of datasets have the sizes of these."""
    for name in PRESENT:
        resize_row(monkeypatch, name, TRAIN, TEST, CLASSES)


def main() -> None:
    """The command line with such rows, as a process of its own."""
    from carp.cli import main as command_line

    shrink_rows(pytest.MonkeyPatch())
    command_line()


if __name__ == "__main__":
    main()
