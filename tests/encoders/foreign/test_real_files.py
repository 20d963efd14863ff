"""Real weights, where they are at hand: right tensors give right answers."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor

from carp.encoders.foreign import foreign_encoder
from carp.restricted.checkpoint_file import read_checkpoint

DATA = Path(os.environ.get("CARP_TEST_DATA", "data"))
CIFAR_WEIGHTS, CIFAR10 = DATA / "cifar_resnet_weights.tar.gz", DATA / "cifar10.tar.gz"
KERAS = DATA / "resnet50_keras_v1_rgb_backbone_fp16.pth"
needs_cifar = pytest.mark.skipif(
    not (CIFAR_WEIGHTS.exists() and CIFAR10.exists()),
    reason=f"needs {CIFAR_WEIGHTS.name} and {CIFAR10.name} in CARP_TEST_DATA",
)
needs_keras = pytest.mark.skipif(not KERAS.exists(), reason=f"needs {KERAS.name} in CARP_TEST_DATA")
MEAN, STD = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(CIFAR_WEIGHTS) as archive:
        member = next(m for m in archive if name in m.name)
        path = folder / Path(member.name).name
        path.write_bytes(archive.extractfile(member).read())
    return path


@pytest.fixture(scope="module")
def cifar_test() -> tuple[Tensor, Tensor]:
    """The first 2,000 test images of CIFAR-10 in their published order, and their classes."""
    images, classes = {}, {}
    with tarfile.open(CIFAR10) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if len(parts) == 4 and parts[1] == "test" and int(Path(parts[3]).stem) < 2000:
                index = int(Path(parts[3]).stem)
                images[index] = np.asarray(Image.open(io.BytesIO(archive.extractfile(member).read())).convert("RGB"))
                classes[index] = parts[2]
    names = sorted(set(classes.values()))
    pixels = torch.from_numpy(np.stack([images[i] for i in range(2000)])).permute(0, 3, 1, 2) / 255
    return (pixels - MEAN) / STD, torch.tensor([names.index(classes[i]) for i in range(2000)])


@needs_cifar
@pytest.mark.slow
@pytest.mark.parametrize(("name", "accuracy"), [("resnet20", 0.917), ("resnet56", 0.930)])
def test_cifar_resnets_classify(name: str, accuracy: float, cifar_test: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    images, classes = cifar_test
    path = unpacked(name, tmp_path)
    encoder, weights = foreign_encoder(path)
    assert weights.method.name == "cifar-resnet"
    assert weights.leftovers == ("linear.weight", "linear.bias")
    state = read_checkpoint(path)["state_dict"]
    with torch.inference_mode():
        features = torch.cat([encoder(batch) for batch in images.split(250)])
        scores = features @ state["module.linear.weight"].T + state["module.linear.bias"]
    assert (scores.argmax(dim=1) == classes).float().mean().item() == pytest.approx(accuracy, abs=6e-4)


@needs_keras
def test_strides_in_the_1x1_convolutions() -> None:
    """As its own description says: torchvision's network with strides moved and eps 1e-3."""
    encoder, weights = foreign_encoder(KERAS, "resnet-v1")
    assert (str(weights.architecture), weights.leftovers) == ("ResNet-50", ())
    reference = torchvision.models.resnet50()
    reference.fc = torch.nn.Identity()
    reference.load_state_dict({n: t.float() for n, t in read_checkpoint(KERAS).items()}, strict=False)
    for stage in (reference.layer2, reference.layer3, reference.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in reference.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(encoder(images), reference.eval()(images))
        plain, unnamed = foreign_encoder(KERAS)
        assert unnamed.method.name == "resnet"  # its keys do not tell
        assert not torch.allclose(plain(images), encoder(images), atol=1e-2)
