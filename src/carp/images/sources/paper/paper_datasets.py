"""The paper's datasets, one row each: where they are stored, how large they are and what they are used for.

`dataset:NAME:SPLIT` opens a split of a row (`dataset_source.py`). The splits are those of the authors' own evaluation;
the numbers of images are torchvision's. Datasets for search (`ranked_sets.py`) have no splits: `train` is what is
searched, `test` the queries.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

PREFIX = "dataset:"
Metric = Literal["top-1", "mean per-class", "mAP"]
Layout = Literal["torchvision", "folders", "voc", "inaturalist", "ranked"]


@dataclass(frozen=True)
class Split:
    """A split of a dataset: the authors' name for it, torchvision's arguments, and the number of images."""

    word: str
    arguments: Mapping[str, Any]
    images: int


@dataclass(frozen=True)
class SplitList:
    """A published list of some of the training images: its file in ROOT/NAME, its number of images."""

    file: str
    images: int


@dataclass(frozen=True)
class Dataset:
    """A row of the table."""

    name: str
    title: str
    torchvision: str
    train: Split
    test: Split
    classes: int
    """The number of classes; 0 for a dataset for search."""
    metric: Metric
    """The metric reported in the literature."""
    paper_metric: Metric
    """The metric reported in the paper."""
    protocols: tuple[str, ...]
    """The paper's protocols that use it."""
    gigabytes: float
    """To download."""
    marker: str
    """A path below the root that exists if the dataset does."""
    download: bool = True
    """Whether torchvision can download it."""
    how: str = ""
    """How to get it if torchvision cannot download it, or a remark about it."""
    folder: str = ""
    """The folder below the root that torchvision uses as its own root."""
    layout: Layout = "torchvision"
    """How it is stored: as torchvision's class reads it, as folders of classes, or in a form with code of its own."""
    truth: str = ""
    """The file of its ground truth, for some datasets for search."""
    truth_at: str = ""
    """The address of that file."""
    lists: Mapping[str, SplitList] = field(default_factory=dict)
    """Published lists of some of the training images, by the word for them."""

    @property
    def is_ranked(self) -> bool:
        """Whether it is a dataset for search, without splits and classes."""
        return self.layout == "ranked"

    def source(self, split: str) -> str:
        """Return the text that opens a split (`train`, `test` or one of `lists`), or all of a dataset for search."""
        return f"{PREFIX}{self.name}" if self.is_ranked else f"{PREFIX}{self.name}:{split}"

    def split(self, split: str) -> Split:
        """Return the published split; for one of `lists`, the one that it is a part of."""
        return self.test if split == "test" else self.train

    def images(self, split: str) -> int:
        """Return the number of images of a split."""
        return self.lists[split].images if split in self.lists else self.split(split).images


@dataclass(frozen=True)
class Presence:
    """Whether a dataset is in a folder: `state`, the texts that open its splits, or why it cannot be used."""

    state: Literal["present", "absent", "broken"]
    train: str = ""
    test: str = ""
    lists: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class ListedDataset:
    """A row of the table and, if a folder was searched, whether the dataset is in it."""

    dataset: Dataset
    found: Presence | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        row = self.dataset
        splits = {
            name: {
                "word": split.word,
                "source": row.source(name),
                "arguments": dict(split.arguments),
                "images": split.images,
            }
            for name, split in (("train", row.train), ("test", row.test))
        }
        lists = {word: {"source": row.source(word), **asdict(subset)} for word, subset in row.lists.items()}
        return {**vars(row), **splits, "lists": lists} | ({"found": asdict(self.found)} if self.found else {})


def _split(word: str, images: int, **arguments: Any) -> Split:
    return Split(word, MappingProxyType(arguments or {"split": word}), images)


def _searched(name: str, title: str, images: int, queries: int, gigabytes: float, archives: str) -> Dataset:
    """Return a row for revisited Oxford or Paris."""
    address = f"http://cmp.felk.cvut.cz/revisitop/data/datasets/{name}/gnd_{name}.pkl"
    return Dataset(
        name, title, "", Split("database", {}, images), Split("queries", {}, queries),
        classes=0, metric="mAP", paper_metric="mAP", protocols=("retrieval",), gigabytes=gigabytes,
        marker=f"{name}/jpg", download=False, layout="ranked", truth=f"gnd_{name}.pkl", truth_at=address,
        how=f"unpack {archives} into ROOT/{name}/jpg, and save {address} in ROOT/{name} "
        "(https://github.com/filipradenovic/revisitop does both)",
    )  # fmt: skip


_LISTS_AT = "https://github.com/google-research/simclr/tree/master/imagenet_subsets"
DATASETS = (
    Dataset(
        "imagenet", "ImageNet-1M", "ImageNet", _split("train", 1_281_167), _split("val", 50_000),
        classes=1000, metric="top-1", paper_metric="top-1", protocols=("knn", "kmeans", "linear"), gigabytes=145,
        marker="imagenet/train", folder="imagenet", download=False, layout="folders",
        lists={"1%": SplitList("1percent.txt", 12_811), "10%": SplitList("10percent.txt", 128_116)},
        how="register at https://image-net.org, put ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and "
        "ILSVRC2012_img_val.tar into ROOT/imagenet and open it once with torchvision.datasets.ImageNet, which unpacks "
        "them; or put class folders into ROOT/imagenet/train and val. The 1% and 10% lists also go into ROOT/imagenet: "
        f"{_LISTS_AT}",
    ),
    Dataset(
        "pets", "Oxford-IIIT Pet", "OxfordIIITPet", _split("trainval", 3_680), _split("test", 3_669),
        classes=37, metric="mean per-class", paper_metric="top-1", protocols=("knn",), gigabytes=0.8,
        marker="oxford-iiit-pet",
    ),
    Dataset(
        "flowers", "Oxford Flowers-102", "Flowers102", _split("train", 1_020), _split("test", 6_149),
        classes=102, metric="mean per-class", paper_metric="top-1", protocols=("knn",), gigabytes=0.4,
        marker="flowers-102", how="needs scipy; others train on train and val together (2,040 images)",
    ),
    Dataset(
        "aircraft", "FGVC-Aircraft", "FGVCAircraft", _split("trainval", 6_667), _split("test", 3_333),
        classes=100, metric="mean per-class", paper_metric="top-1", protocols=("knn",), gigabytes=2.8,
        marker="fgvc-aircraft-2013b",
    ),
    Dataset(
        "cars", "Stanford Cars", "StanfordCars", _split("train", 8_144), _split("test", 8_041),
        classes=196, metric="top-1", paper_metric="top-1", protocols=("knn",), gigabytes=1.9,
        marker="stanford_cars", download=False,
        how="its download page is gone: get cars_train, cars_test, devkit and cars_test_annos_withlabels.mat from a "
        "mirror into ROOT/stanford_cars, as in https://github.com/pytorch/vision/issues/7545; needs scipy",
    ),
    Dataset(
        "country211", "Country-211", "Country211", _split("train", 31_650), _split("test", 21_100),
        classes=211, metric="top-1", paper_metric="top-1", protocols=("knn",), gigabytes=11.5, marker="country211",
    ),
    Dataset(
        "food101", "Food-101", "Food101", _split("train", 75_750), _split("test", 25_250),
        classes=101, metric="top-1", paper_metric="top-1", protocols=("knn",), gigabytes=5.0, marker="food-101",
    ),
    Dataset(
        "stl10", "STL-10", "STL10", _split("train", 5_000), _split("test", 8_000),
        classes=10, metric="top-1", paper_metric="top-1", protocols=("knn",), gigabytes=2.6, marker="stl10_binary",
    ),
    Dataset(
        "gtsrb", "GTSRB", "GTSRB", _split("train", 26_640), _split("test", 12_630),
        classes=43, metric="top-1", paper_metric="top-1", protocols=("knn", "kmeans"), gigabytes=0.3,
        marker="gtsrb/GTSRB",
    ),
    Dataset(
        "cifar10", "CIFAR-10", "CIFAR10",
        _split("train", 50_000, train=True), _split("test", 10_000, train=False),
        classes=10, metric="top-1", paper_metric="top-1", protocols=("kmeans",), gigabytes=0.2,
        marker="cifar-10-batches-py",
    ),
    Dataset(
        "cifar100", "CIFAR-100", "CIFAR100",
        _split("train", 50_000, train=True), _split("test", 10_000, train=False),
        classes=100, metric="top-1", paper_metric="top-1", protocols=("kmeans",), gigabytes=0.2,
        marker="cifar-100-python",
    ),
    Dataset(
        "dtd", "DTD", "DTD", _split("train", 1_880), _split("test", 1_880),
        classes=47, metric="top-1", paper_metric="top-1", protocols=(), gigabytes=0.6, marker="dtd/dtd",
        how="partition 1; the paper has no table with it, the authors' k-means does",
    ),
    Dataset(
        "voc07", "Pascal VOC07", "VOCDetection",
        _split("trainval", 5_011, year="2007", image_set="trainval"),
        _split("test", 4_952, year="2007", image_set="test"),
        classes=20, metric="mAP", paper_metric="mAP", protocols=("few-shot",), gigabytes=0.9,
        marker="VOCdevkit/VOC2007", layout="voc",
        how="an image has several labels: the names of the objects in its annotation",
    ),
    Dataset(
        "inat2018", "iNaturalist 2018", "INaturalist",
        _split("train", 437_513, version="2018"), _split("val", 24_426, version="2018"),
        classes=8_142, metric="top-1", paper_metric="top-1", protocols=("few-shot",), gigabytes=120,
        marker="inaturalist/2018", folder="inaturalist", layout="inaturalist",
        how="torchvision does not split it: put train2018.json and val2018.json, which list its splits, into "
        "ROOT/inaturalist (https://github.com/visipedia/inat_comp/tree/master/2018)",
    ),
    _searched(
        "roxford5k", "ROxford5k", 4_993, 70, 1.9,
        "http://www.robots.ox.ac.uk/~vgg/data/oxbuildings/oxbuild_images.tgz",
    ),
    _searched(
        "rparis6k", "RParis6k", 6_322, 70, 2.5,
        "http://www.robots.ox.ac.uk/~vgg/data/parisbuildings/paris_1.tgz and paris_2.tgz",
    ),
    Dataset(
        "copydays", "Copydays", "", Split("original", {}, 157), Split("strong", {}, 229),
        classes=0, metric="mAP", paper_metric="mAP", protocols=("copies",), gigabytes=0.4,
        marker="copydays/original", download=False, layout="ranked",
        how="unpack copydays_original.tar.gz into ROOT/copydays/original and copydays_strong.tar.gz into "
        "ROOT/copydays/strong (https://lear.inrialpes.fr/~jegou/data.php#copydays); the other archives go into "
        "jpegqual/3 … 75 and crops/10 … 80",
    ),
)  # fmt: skip
VOC0712_SIZES = (16_551, 4_952)
"""Training and test images of detection on VOC 2007 and 2012."""
BY_NAME = {row.name: row for row in DATASETS}


def find(word: str) -> Dataset | None:
    """Return the row that a name, a title, a torchvision class or `dataset:NAME:SPLIT` means, in any spelling."""
    name = _plain(word.removeprefix(PREFIX).removeprefix("torchvision:").partition(":")[0])
    return next((row for row in DATASETS if name in {_plain(n) for n in _names(row)}), None)


def _names(row: Dataset) -> list[str]:
    return [name for name in (row.name, row.title, row.torchvision) if name]


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
