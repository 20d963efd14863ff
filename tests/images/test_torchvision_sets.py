"""torchvision's datasets by name: real files where there are some, and mistakes with their remedy."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from carp.errors import DataError
from carp.images.open_source import open_source
from carp.images.source import read
from tests.helpers import tiny_images, write_images

PETS = Path(os.environ.get("CARP_TEST_DATA", "data")) / "oxford_pets_96.tar.gz"


@pytest.fixture
def satellite(tmp_path):
    """EuroSAT is a folder of classes, small enough to write here."""
    write_images(tmp_path / "eurosat" / "2750", tiny_images(9), classes=3)
    return tmp_path


def test_a_data_set_is_opened_by_its_name(satellite):
    source = open_source("torchvision:EuroSAT", root=satellite)
    assert source.name == "torchvision:EuroSAT"
    assert len(source) == 9
    assert source.classes == ("class-0", "class-1", "class-2")
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.array_equal(read(source, 0), tiny_images(9)[0])
    assert open_source("EuroSAT", kind="torchvision", root=str(satellite)).fingerprint == source.fingerprint


def write_cifar(root):
    """CIFAR-10 as it is stored, with twenty images per file; tests replace the checksums that torchvision knows."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for i, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        images = tiny_images(20, seed=i)
        entry = {"data": images.transpose(0, 3, 1, 2).reshape(20, -1), "labels": [j % 10 for j in range(20)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    names = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return root


def test_splits_by_name_and_training_images_without(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    root = write_cifar(tmp_path)
    train, named, test = (open_source(f"torchvision:CIFAR10{s}", root=root) for s in ("", ":train", ":test"))
    assert (len(train), len(named), len(test)) == (100, 100, 20)
    assert train.fingerprint == named.fingerprint != test.fingerprint
    assert np.array_equal(read(test, 7), tiny_images(20, seed=5)[7])
    assert test.classes[3] == "cat"
    assert test.labels.tolist() == [j % 10 for j in range(20)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CIFAR", r"torchvision has no dataset 'CIFAR'\. Did you mean 'CIFAR10"),
        ("cifar10", r"no dataset 'cifar10'\. Did you mean 'CIFAR10'\?"),
        ("ImageFolder", "no dataset 'ImageFolder'"),
        ("CIFAR10", r"torchvision:CIFAR10 is not in the folder .*: set root=.* or add download=true"),
        ("CIFAR10:valid", "CIFAR10 has the splits train and test, received 'valid'"),
        ("Flowers102:valid", r"cannot open torchvision:Flowers102:valid: .*valid"),
        ("EuroSAT:test", "EuroSAT has no splits, received 'test'"),
        ("EMNIST", "EMNIST needs a split: write torchvision:EMNIST:SPLIT"),
        ("ImageNet", "torchvision:ImageNet is not in the folder .*, or put it there by hand"),
    ],
)
def test_mistakes_say_what_to_do(tmp_path, name, message):
    with pytest.raises(DataError, match=message) as raised:
        open_source(f"torchvision:{name}", root=tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_root_and_a_download_that_cannot_be(tmp_path):
    with pytest.raises(DataError, match=r"torchvision:CIFAR10 .* set root=FOLDER"):
        open_source("torchvision:CIFAR10")
    with pytest.raises(DataError, match="torchvision cannot download ImageNet"):
        open_source("torchvision:ImageNet", root=tmp_path, download=True)


def test_a_download_that_fails_is_one_line(tmp_path, monkeypatch):
    def offline(*_args, **_kwargs):
        raise OSError("no network\nhere")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    with pytest.raises(DataError, match=r"cannot download torchvision:CIFAR10 to .*: OSError: no network here"):
        open_source("torchvision:CIFAR10", root=tmp_path, download=True)


@pytest.mark.skipif(not PETS.exists(), reason="needs oxford_pets_96.tar.gz in CARP_TEST_DATA")
def test_real_pets_with_their_breeds(tmp_path):
    with tarfile.open(PETS) as archive:
        wanted = [m for m in archive if "/annotations/" in m.name or m.name.endswith(("Abyssinian_1.jpg", "_100.jpg"))]
        archive.extractall(tmp_path, members=wanted, filter="data")
    root = tmp_path / "oxford_pets_96"
    train, test = (open_source(f"torchvision:OxfordIIITPet{s}", root=root) for s in ("", ":test"))
    assert (len(train), len(test)) == (3680, 3669)
    assert train.classes == test.classes
    assert len(train.classes) == 37
    assert train.classes[0] == "Abyssinian"
    assert min(read(train, 0).shape[:2]) == 96  # Abyssinian_100
