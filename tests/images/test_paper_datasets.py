"""The rows of the table fit torchvision; datasets on the disk are found, or their fault is reported."""

import inspect
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torchvision.datasets
from PIL import Image

from carp.commands import datasets as _datasets  # noqa: F401 - binds the rows before a test replaces them
from carp.evaluation import data_names as _data_names  # noqa: F401
from carp.images.sources.paper import paper_datasets
from carp.images.sources.paper.dataset_source import look
from carp.images.sources.paper.paper_datasets import BY_NAME, DATASETS, Dataset, SplitList, find
from tests.helpers import tiny_images, write_images

NAMES = "imagenet pets flowers aircraft cars country211 food101 stl10 gtsrb cifar10 cifar100 dtd voc07 inat2018"
RANKED = "roxford5k rparis6k copydays"
BY_TORCHVISION = [row for row in DATASETS if not row.is_ranked]


def write_dtd(root: Path, *, images: int = 1_880, first_image: bool = True) -> None:
    """The files that torchvision reads of DTD: its list of images in 47 classes, and the first of them."""
    folder = root / "dtd" / "dtd"
    for name in ("images/class-0", "labels", "imdb"):
        (folder / name).mkdir(parents=True)
    for part in ("train1", "test1"):
        lines = [f"class-{i % 47}/{i}.jpg\n" for i in range(images)]
        (folder / "labels" / f"{part}.txt").write_text("".join(lines))
    if first_image:
        Image.new("RGB", (8, 8)).save(folder / "images" / "class-0" / "0.jpg")


def test_all_data_sets_of_the_paper_have_a_row() -> None:
    assert " ".join(row.name for row in DATASETS) == f"{NAMES} {RANKED}"


@pytest.mark.parametrize("row", BY_TORCHVISION, ids=lambda row: row.name)
def test_a_row_fits_torchvision(row: Dataset) -> None:
    accepted = inspect.signature(getattr(torchvision.datasets, row.torchvision)).parameters
    for split in (row.train, row.test):
        assert set(split.arguments) <= set(accepted)
    assert ("download" in accepted) or not row.download
    assert row.download or row.how, "neither torchvision nor a person knows how to get it"
    assert row.metric in {row.paper_metric, "mean per-class"}
    assert (row.train.arguments == row.test.arguments) == (row.layout == "inaturalist")


@pytest.mark.parametrize("row", BY_TORCHVISION, ids=lambda row: row.name)
def test_splits_exist_and_their_absence_is_a_runtime_error(row: Dataset, tmp_path: Path) -> None:
    maker = getattr(torchvision.datasets, row.torchvision)
    for split in (row.train, row.test):
        with pytest.raises((RuntimeError, FileNotFoundError)):  # a split that does not exist is a ValueError
            maker(root=str(tmp_path), **split.arguments)


def test_names_are_found_however_they_are_spelt() -> None:
    for word in ("cifar10", "CIFAR-10", "torchvision:CIFAR10", "torchvision:CIFAR10:test", "dataset:cifar10:test"):
        assert find(word) is BY_NAME["cifar10"]
    assert find("torchvision:CIFAR100:train") is BY_NAME["cifar100"]
    assert find("my photos") is None


def test_nothing_is_found_or_written_in_an_empty_folder(tmp_path: Path) -> None:
    assert {look(row, tmp_path).state for row in DATASETS} == {"absent"}
    assert not list(tmp_path.iterdir())


def test_what_torchvision_can_open_is_present(tmp_path: Path) -> None:
    write_dtd(tmp_path)
    found = look(BY_NAME["dtd"], tmp_path)
    assert (found.state, found.train, found.test) == ("present", "dataset:dtd:train", "dataset:dtd:test")


def test_a_split_that_is_too_small_is_broken(tmp_path: Path) -> None:
    write_dtd(tmp_path, images=3)
    found = look(BY_NAME["dtd"], tmp_path)
    assert found.state == "broken"
    assert found.reason.startswith(f"dataset:dtd:train has 3 images in {tmp_path}, not 1,880:")


def test_lists_without_images_are_broken(tmp_path: Path) -> None:
    write_dtd(tmp_path, first_image=False)
    found = look(BY_NAME["dtd"], tmp_path)
    assert found.state == "broken"
    assert "0.jpg" in found.reason


def small(name: str, train: int, test: int, classes: int) -> Dataset:
    """A row as if the dataset were as small as what a test can write."""
    row = BY_NAME[name]
    return replace(row, train=replace(row.train, images=train), test=replace(row.test, images=test), classes=classes)


def resize_row(
    monkeypatch: pytest.MonkeyPatch, name: str, train: int, test: int, classes: int, **lists: SplitList
) -> None:
    """Put such a row into the table."""
    row = small(name, train, test, classes)
    row = replace(row, lists=lists) if lists else row
    monkeypatch.setattr(
        paper_datasets, "DATASETS", tuple(row if r.name == name else r for r in paper_datasets.DATASETS)
    )
    monkeypatch.setitem(BY_NAME, name, row)


def test_folders_of_classes_are_present(tmp_path: Path) -> None:
    row = small("cifar10", 6, 6, 3)
    for part in ("train", "test"):
        write_images(tmp_path / "cifar10" / part, tiny_images(6), classes=3)
    assert look(row, tmp_path).state == "present"
    assert look(BY_NAME["cifar10"], tmp_path).state == "broken"
    shutil.rmtree(tmp_path / "cifar10" / "test" / "class-2")
    found = look(row, tmp_path)
    assert (found.state, found.train) == ("broken", "")
    assert "cifar10/test has 2 classes, not 3" in found.reason
    shutil.rmtree(tmp_path / "cifar10" / "test")
    assert "cifar10/test has 0 classes, not 3" in look(row, tmp_path).reason
