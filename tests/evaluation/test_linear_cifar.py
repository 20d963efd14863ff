"""Linear evaluation on CIFAR-10 with a trained ResNet-20, beside torchvision's crops and scikit-learn."""

import io
import os
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from carp.data.loader import IMAGENET_MEAN, IMAGENET_STD
from carp.data.source import ArraySource
from carp.evaluation.linear_images import linear_on_images
from carp.features.extract import extract

DATA = Path(os.environ.get("CARP_TEST_DATA", "data"))
IMAGES, WEIGHTS = DATA / "cifar10.tar.gz", DATA / "cifar_resnet_weights.tar.gz"
CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (IMAGES.exists() and WEIGHTS.exists()),
        reason="needs cifar10.tar.gz and cifar_resnet_weights.tar.gz in CARP_TEST_DATA",
    ),
]


class Block(nn.Module):
    """Two convolutions; where the size changes, the shortcut takes every other pixel and fills channels with zeros."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.grow, self.stride = (after - before) // 2, 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.grow, self.grow)))


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32), Block(32, 32), Block(32, 32))
        self.layer3 = nn.Sequential(Block(32, 64), Block(64, 64), Block(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3))


def load_encoder() -> tuple[nn.Module, nn.Linear]:
    """The network and its own classifier."""
    with tarfile.open(WEIGHTS) as archive:
        file = archive.extractfile(next(name for name in archive.getnames() if "resnet20" in name))
        assert file is not None
        stored = torch.load(io.BytesIO(file.read()), weights_only=True, map_location="cpu")["state_dict"]  # noqa: TID251
    stored = {name.removeprefix("module."): value for name, value in stored.items()}
    encoder, classifier = ResNet20().eval(), nn.Linear(64, 10)
    classifier.load_state_dict({name: stored.pop(f"linear.{name}") for name in ("weight", "bias")})
    encoder.load_state_dict(stored)
    return encoder, classifier


def load_images(per_class: int) -> tuple[ArraySource, ArraySource]:
    """Two parts of the test split: what the encoder was trained on is too easy for it to choose by."""
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    parts: tuple[list[tuple[np.ndarray, int]], ...] = ([], [])
    counts = Counter[str]()
    with tarfile.open(IMAGES) as archive:
        for member in archive:
            split, _, name = str(Path(member.name).parent).rpartition("/")
            if split.endswith("test") and member.isfile() and counts[name] < 2 * per_class:
                stored = io.BytesIO(archive.extractfile(member).read())  # a seek back would unpack all again
                pixels = np.array(Image.open(stored).convert("RGB"))
                parts[counts[name] // per_class].append((pixels, classes.index(name)))
                counts[name] += 1
    first, second = (
        ArraySource(np.stack([pixels for pixels, _ in part]), np.array([label for _, label in part]), classes)
        for part in parts
    )
    return first, second


def torchvision_crops(encoder: nn.Module, source: ArraySource, epochs: int) -> np.ndarray:
    """Features of crops and flips that torchvision makes, epoch after epoch."""
    transform = v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ])  # fmt: skip
    with torch.inference_mode():
        made = [encoder(torch.stack([transform(image) for image in source.images])).numpy() for _ in range(epochs)]
    return np.concatenate(made)


def test_lands_where_torchvision_and_a_logistic_regression_do() -> None:
    """Crops of a few pixels are hard for this encoder, so that its own classifier, trained on whole images, is better.

    1,000 test images have a standard error of one per cent: two of them are allowed.
    """
    models = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    torch.manual_seed(0)
    encoder, classifier = load_encoder()
    train, test = load_images(100)
    train_features, test_features = (extract(encoder, part, size=32, device=CPU).features for part in (train, test))
    own = float(np.mean(classifier(torch.from_numpy(test_features)).argmax(dim=1).numpy() == test.labels))
    assert 0.9 < own < 0.94, "the encoder is not what it should be"
    theirs = models.LogisticRegression(C=0.01, max_iter=300).fit(
        torchvision_crops(encoder, train, 10), np.tile(train.labels, 10)
    )
    result = linear_on_images(
        train_features, train.labels, test_features, test.labels,
        encoder=encoder, source=train, size=32, device=CPU, epochs=20,
    )  # fmt: skip
    expected = theirs.score(test_features, test.labels)
    print(own, expected, result.values)
    assert result.values["best_top1_on_test"] == pytest.approx(expected, abs=0.02)
    assert expected < own
