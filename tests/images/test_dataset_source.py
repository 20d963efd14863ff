"""`dataset:NAME:PART`: small trees in the layout of each dataset, opened by torchvision where it has a part in it."""

import json
import os
import pickle
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image

from carp.errors import DataError
from carp.images.inspect.scan import scan
from carp.images.labels import single_labels
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources.array import ArraySource
from carp.images.sources.paper.dataset_source import counterpart, look
from carp.images.sources.paper.paper_datasets import BY_NAME
from carp.images.sources.paper.split_lists import VOC_CLASSES
from carp.images.sources.subset import Subset
from tests.helpers import tiny_images, write_images
from tests.images.layouts import LAYOUTS, PARTS, grey
from tests.images.test_paper_datasets import resize_row

pytest.importorskip("scipy.io", reason="SciPy is not installed")
DATA = Path(os.environ.get("CARP_TEST_DATA", "data"))


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the table say that a dataset is as small as the tree of a test."""
    return partial(resize_row, monkeypatch)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_voc(root: Path) -> Path:
    """VOC 2007 with the objects of every image: name, and whether it is difficult."""
    objects = {
        "trainval": [[("dog", 0), ("cat", 0), ("dog", 0)], [("person", 1)], [("cow", 0), ("cow", 1)], [("train", 0)]],
        "test": [[("aeroplane", 0)], [("sheep", 0)], [("sofa", 0), ("chair", 1)], [("horse", 0)]],
    }
    folder = root / "VOCdevkit" / "VOC2007"
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "Annotations").mkdir()
    for first, (part, images) in zip((5, 1), objects.items(), strict=True):
        names = [f"{first + 10 * i:06d}" for i in range(len(images))]
        (folder / "ImageSets" / "Main" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
        for i, (name, shown) in enumerate(zip(names, images, strict=True)):
            save(folder / "JPEGImages" / f"{name}.jpg", np.full((8, 8, 3), 20 * i, dtype=np.uint8))
            inner = "".join(
                f"<object><name>{word}</name><pose>Left</pose><difficult>{hard}</difficult>"
                "<bndbox><xmin>1</xmin></bndbox><part><name>head</name></part></object>"
                for word, hard in shown
            )
            (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation><filename/>{inner}</annotation>")
    return root


def test_voc_has_several_labels_and_difficult_objects_do_not_count(tmp_path: Path, resize: Callable[..., None]) -> None:
    resize("voc07", 4, 4, 20)
    root = write_voc(tmp_path)
    source = open_source("dataset:voc07:trainval", root=root)
    assert source.name == "dataset:voc07:train"
    assert source.classes == VOC_CLASSES == tuple(sorted(VOC_CLASSES))
    assert source.labels is not None
    assert (source.labels.dtype, source.labels.shape) == (np.int64, (4, 20))
    shown = [{source.classes[c] for c in np.flatnonzero(row)} for row in source.labels]
    assert shown == [{"dog", "cat"}, set(), {"cow"}, {"train"}]
    assert source.place(2) == str(root / "VOCdevkit/VOC2007/JPEGImages/000025.jpg")
    assert abs(int(read(source, 3)[0, 0, 0]) - 60) <= 2
    test = open_source("dataset:voc07:test", root=root)
    assert test.fingerprint != source.fingerprint
    assert look(BY_NAME["voc07"], root).state == "present"


def test_several_labels_pass_through_other_sources_and_k_nn_refuses_them(
    tmp_path: Path, resize: Callable[..., None]
) -> None:
    resize("voc07", 4, 4, 20)
    source = open_source("dataset:voc07", root=write_voc(tmp_path))
    assert source.labels is not None
    part = Subset(source, np.array([3, 0]))
    assert part.labels is not None
    assert np.array_equal(part.labels, source.labels[[3, 0]])
    assert scan(part, view_size=8).classes == {name: int(name in {"cat", "dog", "train"}) for name in VOC_CLASSES}
    held = ArraySource(tiny_images(4), source.labels, source.classes)
    assert held.labels is source.labels
    with pytest.raises(
        DataError, match="k-NN needs one label per image; dataset:voc07:train has several: give images with one"
    ):
        single_labels(source)
    source.keep_index(tmp_path / "index")
    copy = pickle.loads(pickle.dumps(source))  # noqa: TID251 - as a worker gets it
    assert np.array_equal(copy.labels, source.labels)
    assert copy.fetch(1) == source.fetch(1)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            "<annotation><object><name>unicorn</name></object></annotation>",
            "000015.xml has an object 'unicorn'",
        ),
        ("<annotation>", r"cannot read the annotation .*000015\.xml"),
        (None, r"cannot read the annotation .*000015\.xml"),
    ],
)
def test_annotations_that_cannot_be_used(
    tmp_path: Path, resize: Callable[..., None], annotation: str | None, message: str
) -> None:
    resize("voc07", 4, 4, 20)
    file = write_voc(tmp_path) / "VOCdevkit/VOC2007/Annotations/000015.xml"
    file.unlink() if annotation is None else file.write_text(annotation)
    with pytest.raises(DataError, match=message):
        open_source("dataset:voc07", root=tmp_path)


def write_inaturalist(root: Path) -> Path:
    """Six species in two groups as torchvision unpacks them, two images of each for training and one to test."""
    lists: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
    for species in range(6):
        group = "Plantae" if species in {1, 4} else "Aves"
        for i in range(3):
            save(root / f"inaturalist/2018/{group}/{species}/{i}{species}.jpg", np.full((8, 8, 3), 40 * species, "u1"))
            entry = {"id": 10 * species + i, "file_name": f"train_val2018/{group}/{species}/{i}{species}.jpg"}
            lists["val" if i == 1 else "train"].insert(0, entry)
    for part, images in lists.items():
        content = {"images": images, "annotations": [], "categories": []}
        (root / "inaturalist" / f"{part}2018.json").write_text(json.dumps(content))
    return root


def test_inaturalist_is_parted_by_its_lists(tmp_path: Path, resize: Callable[..., None]) -> None:
    root = write_inaturalist(tmp_path)
    resize("inat2018", 12, 6, 6)
    train = open_source("dataset:inat2018:train", root=root)
    assert train.labels is not None
    assert train.labels.tolist() == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert train.classes == ("Aves/0", "Plantae/1", "Aves/2", "Aves/3", "Plantae/4", "Aves/5")
    for i in range(12):
        assert abs(int(read(train, i)[0, 0, 0]) - 40 * train.labels[i]) <= 2
    test = open_source("dataset:inat2018:val", root=root)
    assert test.name == "dataset:inat2018:test"
    assert test.classes == train.classes
    assert not {test.place(i) for i in range(6)} & {train.place(i) for i in range(12)}


def test_inaturalist_without_its_lists_or_images(tmp_path: Path, resize: Callable[..., None]) -> None:
    root = write_inaturalist(tmp_path)
    resize("inat2018", 12, 6, 6)
    for name in ("Aves/0/00.jpg", "Plantae/4/24.jpg"):
        (root / "inaturalist/2018" / name).unlink()
    with pytest.raises(
        DataError, match=r"2 of the 12 images that .*train2018.json names .*; the first is Plantae/4/24.jpg"
    ):
        open_source("dataset:inat2018", root=root)
    (root / "inaturalist/train2018.json").write_text('{"pictures": []}')
    with pytest.raises(DataError, match=r"train2018.json is not the list of iNaturalist"):
        open_source("dataset:inat2018", root=root)
    (root / "inaturalist/train2018.json").unlink()
    with pytest.raises(DataError, match=r"cannot read .*train2018.json.*github.com/visipedia"):
        open_source("dataset:inat2018", root=root)


def write_imagenet(root: Path) -> Path:
    """Three classes with four images each for training, one of each to test, and a list of five."""
    for c, word in enumerate(("n01440764", "n01443537", "n02096294")):
        for i in range(4):
            save(root / f"imagenet/train/{word}/{word}_{i}.JPEG", np.full((8, 8, 3), 60 * c + 10 * i, "u1"))
        save(root / f"imagenet/val/{word}/ILSVRC2012_val_0000000{c}.JPEG", np.full((8, 8, 3), 60 * c, "u1"))
    names = ["n02096294_3", "n01440764_0", "n01443537_2", "n01440764_3", "n02096294_0"]
    (root / "imagenet/1percent.txt").write_text("".join(f"{name}.JPEG\n" for name in names))
    return root


def resize_imagenet(resize: Callable[..., None]) -> None:
    resize("imagenet", 12, 3, 3, **{"1%": replace(BY_NAME["imagenet"].lists["1%"], images=5)})


def test_imagenet_and_the_published_lists(tmp_path: Path, resize: Callable[..., None]) -> None:
    root = write_imagenet(tmp_path)
    resize_imagenet(resize)
    train, some = (open_source(f"dataset:imagenet:{part}", root=root) for part in ("train", "1%"))
    assert (len(train), len(some)) == (12, 5)
    assert train.classes == some.classes == ("n01440764", "n01443537", "n02096294")
    assert some.labels is not None
    assert some.labels.tolist() == [2, 0, 1, 0, 2]
    assert [round(int(read(some, i)[0, 0, 0]), -1) for i in range(5)] == [150, 0, 80, 30, 120]
    assert some.name == "dataset:imagenet:1%"
    assert some.fingerprint != train.fingerprint
    assert len(open_source("dataset:imagenet:val", root=root)) == 3
    found = look(BY_NAME["imagenet"], root)
    assert (found.state, found.lists) == ("present", ("dataset:imagenet:1%",))


def test_images_of_a_list_that_are_missing_are_counted(tmp_path: Path, resize: Callable[..., None]) -> None:
    root = write_imagenet(tmp_path)
    resize_imagenet(resize)
    for name in ("n01443537/n01443537_2.JPEG", "n02096294/n02096294_0.JPEG"):
        (root / "imagenet/train" / name).unlink()
    with pytest.raises(DataError, match=r"2 of the 5 images that .*1percent.txt names .* n01443537/n01443537_2.JPEG\b"):
        open_source("dataset:imagenet:1%", root=root)
    (root / "imagenet/1percent.txt").write_text("\n")
    with pytest.raises(DataError, match=r"1percent.txt names no images"):
        open_source("dataset:imagenet:1%", root=root)
    (root / "imagenet/1percent.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read the list .*1percent.txt: No such file"):
        open_source("dataset:imagenet:1%", root=root)


@pytest.mark.skipif(not (DATA / "imagenet_subsets.tar.gz").exists(), reason="needs imagenet_subsets.tar.gz")
def test_the_published_lists_have_their_length_and_all_classes() -> None:
    with tarfile.open(DATA / "imagenet_subsets.tar.gz") as archive:
        for subset in BY_NAME["imagenet"].lists.values():
            file = archive.extractfile(f"imagenet_subsets/{subset.file}")
            assert file is not None
            names = file.read().decode().split()
            assert len(set(names)) == len(names) == subset.images
            assert len({name.partition("_")[0] for name in names}) == 1000


def test_folders_of_classes_serve_any_data_set(tmp_path: Path, resize: Callable[..., None]) -> None:
    resize("pets", 8, 8, 4)
    for part in ("train", "test"):
        write_images(tmp_path / "pets" / part, tiny_images(8), classes=4)
    train, test = (open_source(f"dataset:pets{part}", root=tmp_path) for part in ("", ":test"))
    assert (train.name, test.name) == ("dataset:pets:train", "dataset:pets:test")
    assert train.classes == test.classes
    with pytest.raises(DataError, match=r"flowers:train is not in .* Add download=true"):
        open_source("dataset:flowers", root=tmp_path)
    (tmp_path / "pets" / "train" / "class-0" / "000.png").unlink()
    with pytest.raises(DataError, match=r"pets:train has 7 images in .*, not 8: .* give its folder as the data"):
        open_source("dataset:pets:trainval", root=tmp_path)


@pytest.fixture(params=LAYOUTS)
def kept(
    request: pytest.FixtureRequest, tmp_path: Path, resize: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> str:
    """The name of a dataset that is there as torchvision keeps it."""
    for module in ("stl10", "flowers102"):  # these would compare checksums with those of the published files
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *_: True)
    name = str(request.param)
    named = hasattr(getattr(torchvision.datasets, BY_NAME[name].torchvision), "classes")
    resize(name, 4, 4, 102 if name == "flowers" and named else 2)  # torchvision 0.22 and newer have all their names
    LAYOUTS[name](tmp_path)
    return name


def test_what_torchvision_keeps(kept: str, tmp_path: Path) -> None:
    sources = {part: open_source(f"dataset:{kept}:{part}", root=tmp_path, download=True) for part in PARTS}
    for part, source in sources.items():
        assert source.labels is not None
        seen = {(int(source.labels[i]), round(int(read(source, i)[0, 0, 0]) / 20)) for i in range(4)}
        assert seen == {(i % 2, grey(part, i) // 20) for i in range(4)}
    assert sources["train"].classes == sources["test"].classes
    assert look(BY_NAME[kept], tmp_path).state == "present"


@pytest.mark.parametrize("kept", ["flowers"], indirect=True)
def test_a_set_that_needs_scipy_says_how_to_install_it(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scipy", *[name for name in sys.modules if name.startswith("scipy.")]):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"needs the package scipy.*pip install 'carp-ssl\[eval\]'"):
        open_source(f"dataset:{kept}", root=tmp_path)


def test_labels_are_known_without_opening_the_images(kept: str, tmp_path: Path) -> None:
    for file in [*tmp_path.rglob("*.jpg"), *tmp_path.rglob("*.ppm")]:
        file.write_bytes(b"")
    labels = open_source(f"dataset:{kept}", root=tmp_path).labels
    assert labels is not None
    assert sorted(labels.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dataset:pet", r"no dataset 'pet'\. Did you mean 'pets'\?"),
        ("dataset:", "there is no dataset ''"),
        ("dataset:pets:valid", "pets has .* train, test, received 'valid'"),
        ("dataset:imagenet:2%", r"imagenet has .* train, test, 1%, 10%, received '2%'"),
        ("dataset:imagenet", "imagenet:train is not in .*carp datasets --root"),
        ("dataset:imagenet:1%", "imagenet:train is not in "),
        ("dataset:voc07:test", "voc07:test is not in .* Add download=true"),
        ("datasets:pets", r"Did you mean 'dataset:pets'\?"),
    ],
)
def test_mistakes_say_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        open_source(name, root=tmp_path)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_missing_root() -> None:
    with pytest.raises(DataError, match=r"dataset:pets:test.*set root=FOLDER.*carp datasets"):
        open_source("dataset:pets:test")


def test_the_test_images_that_go_with_a_data_set() -> None:
    assert counterpart("dataset:pets") == "dataset:pets:test"
    assert counterpart("dataset:imagenet:1%") == "dataset:imagenet:test"
    assert counterpart("dataset:pets:train") is None
    assert counterpart("dataset:pets:test") is None
    assert counterpart("photos") is None


@pytest.mark.skipif(not (DATA / "oxford_pets_96.tar.gz").exists(), reason="needs oxford_pets_96.tar.gz")
def test_real_pets(tmp_path: Path) -> None:
    with tarfile.open(DATA / "oxford_pets_96.tar.gz") as archive:
        wanted = [
            m for m in archive if "/annotations/" in m.name or m.name.endswith(("Abyssinian_201.jpg", "_100.jpg"))
        ]
        archive.extractall(tmp_path, members=wanted, filter="data")
    root = tmp_path / "oxford_pets_96"
    train, test = (open_source(f"dataset:pets:{part}", root=root) for part in ("train", "test"))
    assert (len(train), len(test), len(train.classes)) == (3680, 3669, 37)
    assert look(BY_NAME["pets"], root).state == "present"
