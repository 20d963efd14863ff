"""Every row of the table: a file in its layout gives the features of the network that was saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from carp.encoders.foreign import BY_NAME, METHODS, foreign_encoder, read_foreign
from carp.encoders.foreign.architecture import COUNTER, Traits, architecture_of, expected_shapes
from carp.errors import CheckpointError
from carp.model.own_normalisation import OwnNormalisation
from tests.encoders.foreign.layouts import (
    SimClr2ResNet,
    TensorFlowResNet,
    in_tensorflow_order,
    narrow,
    pictures,
    prefixed,
    randomised,
    released,
    with_statistics_last,
)

# Files that cannot tell where they come from are read as what they are; a name, also the file's own, says it.
BARE = {"dino", "barlow-twins", "vicreg", "resnet-v1"}
NEED_A_NAME = {"carl": "carp", "sela-v2": "deepcluster-v2"}
ELSEWHERE = {"simclr-v2", "cifar-resnet", "timm-vit", "deit", "efficientnet-lite0"}
ROWS = [method.name for method in METHODS if method.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return narrow()


def features(encoder: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return encoder(images)


def expected(method: str, source: nn.Module, images: Tensor) -> Tensor:
    """What the source module makes of the images, under the method's own way to compute."""
    row = BY_NAME[method]
    if row.traits.tensorflow_padding:
        source = TensorFlowResNet(source)
    if row.traits.stride_in_1x1:
        source = narrow()
        for stage in (source.layer2, source.layer3, source.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
        for module in source.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-3
    if row.mean == (0, 0, 0):
        source = OwnNormalisation(source, row.mean, row.std)
    return features(source, images)


def save(found: Any, path: Path, **how: Any) -> Path:
    torch.save(found, path, **how)
    return path


@pytest.mark.parametrize("method", ROWS)
def test_the_features_are_those_of_the_source(method: str, source: nn.Module, tmp_path: Path) -> None:
    images = pictures()
    wanted = expected(method, source, images)
    files = released(method, source.state_dict())
    assert files
    for i, found in enumerate(files):
        path = save(found, tmp_path / f"{i}.pth")
        bare = method in BARE and i == 0
        for name in (None, method):
            encoder, weights = foreign_encoder(path, name)
            assert weights.method.name == (name or ("resnet" if bare else NEED_A_NAME.get(method, method)))
            assert not weights.unexpected
            assert not encoder.training
            if name or not bare or method != "resnet-v1":
                # TensorFlow's padding is written out in the reference: another order of sums
                exact = not BY_NAME[method].traits.tensorflow_padding
                torch.testing.assert_close(features(encoder, images), wanted, rtol=0, atol=0 if exact else 2e-6)
            if bare and name is None and method != "resnet-v1":
                assert method in weights.also


def test_every_method_of_the_paper_has_a_row() -> None:
    from carp.report.tables.paper import evaluation_layouts

    theirs = {row.name.removesuffix(" (mc)") for layout in evaluation_layouts().values() for row in layout.rows} - {
        "Random"
    }
    assert theirs == {method.paper.removesuffix(" (mc)") for method in METHODS if method.paper}
    assert len(BY_NAME) == len(METHODS) >= 20
    assert all(method.source.startswith("https://") for method in METHODS)
    assert [method.name for method in METHODS if not method.verified] == ["carl"]


@pytest.mark.parametrize("method", ["swav", "moco-v2", "carp", "triplet", "simclr", "obow"])
def test_half_precision_legacy_files_and_no_counters(method: str, source: nn.Module, tmp_path: Path) -> None:
    rounded = narrow()
    rounded.load_state_dict({n: t.half().to(t.dtype) for n, t in source.state_dict().items()})
    halves = {n: t.half() for n, t in source.state_dict().items() if not n.endswith(COUNTER)}
    if method == "simclr":  # without its counters nothing tells it
        halves = {n: t.half() if t.is_floating_point() else t for n, t in source.state_dict().items()}
    path = save(released(method, halves)[0], tmp_path / "weights.pth.tar", _use_new_zipfile_serialization=False)
    encoder, weights = foreign_encoder(path)
    assert weights.method.name == method
    assert {t.dtype for t in weights.tensors.values()} == {torch.float32}
    assert torch.equal(features(encoder, pictures()), expected(method, rounded, pictures()))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("entry", [None, "state_dict", "model"])
def test_wrapped_and_bare(source: nn.Module, tmp_path: Path, prefix: str, entry: str | None) -> None:
    state = prefixed(source.state_dict(), prefix)
    encoder, weights = foreign_encoder(save({entry: state} if entry else state, tmp_path / "a.pt"))
    assert weights.method.name == "resnet"
    assert torch.equal(features(encoder, pictures()), features(source, pictures()))


def test_safetensors(source: nn.Module, tmp_path: Path) -> None:
    for state, name in ((source.state_dict(), "resnet"), (released("swav", source.state_dict())[0], "swav")):
        path = tmp_path / "weights.pth"  # the name of a file says nothing
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
        encoder, weights = foreign_encoder(path)
        assert weights.method.name == name
        assert torch.equal(features(encoder, pictures()), features(source, pictures()))


@pytest.mark.parametrize(
    ("file", "method"),
    [("dino_resnet50_pretrain.pth", "dino"), ("barlowtwins.pth", "barlow-twins"), ("VICReg-resnet50.pth", "vicreg")],
)
def test_the_name_of_a_bare_file_decides_between_equals(
    source: nn.Module, tmp_path: Path, file: str, method: str
) -> None:
    weights = read_foreign(save(source.state_dict(), tmp_path / file))
    assert weights.method.name == method
    assert set(weights.also) == {"resnet", "dino", "barlow-twins", "vicreg"} - {method}


def test_sela_and_deepcluster_have_one_layout(source: nn.Module, tmp_path: Path) -> None:
    found = released("sela-v2", source.state_dict())[0]
    assert read_foreign(save(found, tmp_path / "selav2_400ep_pretrain.pth.tar")).method.name == "sela-v2"
    weights = read_foreign(save(found, tmp_path / "x.pth.tar"))
    assert (weights.method.name, weights.also) == ("deepcluster-v2", ("sela-v2",))


def test_a_full_checkpoint_of_dino(source: nn.Module, tmp_path: Path) -> None:
    """Student and teacher as in CARP's, told by the state of DINO's loss."""
    found = released("dino-full", source.state_dict())[0]
    encoder, weights = foreign_encoder(save(found, tmp_path / "a.pth"))
    assert (weights.method.name, weights.also, weights.unexpected) == ("dino", (), ())
    assert {"args", "dino_loss", "optimizer", "student"} <= set(weights.beside)
    assert torch.equal(features(encoder, pictures()), features(source, pictures()))


def test_a_converted_simclr_v2(tmp_path: Path) -> None:
    source = randomised(SimClr2ResNet())
    zeros = {n: torch.zeros_like(t) if n.endswith(COUNTER) else t for n, t in source.state_dict().items()}
    path = save({"resnet": zeros, "head": {"layers.0.weight": torch.zeros(2, 2)}}, tmp_path / "r50_1x_sk0.pth")
    encoder, weights = foreign_encoder(path)
    assert weights.method.name == "simclr-v2"
    assert weights.leftovers == ("fc.weight", "fc.bias")
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (BY_NAME["dino"].mean, BY_NAME["dino"].std))
    torch.testing.assert_close(features(encoder, (pixels - mean) / std), features(source, pixels), rtol=1e-5, atol=1e-5)


def test_selective_kernels_are_not_taken_for_a_resnet(tmp_path: Path) -> None:
    state = {
        f"net.{n}": torch.zeros(8, 3, 3, 3) for n in ("0.0.weight", "0.2.weight", "1.blocks.0.net.2.main_conv.0.weight")
    }
    with pytest.raises(CheckpointError, match="does not contain an encoder that CARP knows"):
        read_foreign(save({"resnet": state}, tmp_path / "r50_1x_sk1.pth"))


def test_pixels_between_0_and_1_for_simclr(source: nn.Module, tmp_path: Path) -> None:
    path = save(released("simclr", source.state_dict())[0], tmp_path / "resnet50-1x.pth")
    encoder, _ = foreign_encoder(path)
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (BY_NAME["dino"].mean, BY_NAME["dino"].std))
    torch.testing.assert_close(features(encoder, (pixels - mean) / std), features(source, pixels), rtol=1e-5, atol=1e-5)
    assert encoder.num_features == 48


def test_byol_is_known_by_the_order_of_its_tensors_and_filters(source: nn.Module, tmp_path: Path) -> None:
    state = {n: t for n, t in released("torchvision", source.state_dict())[0].items() if not n.endswith(COUNTER)}
    assert read_foreign(save(state, tmp_path / "a.pth")).method.name == "torchvision"  # before 2018: no counters
    converted = in_tensorflow_order(with_statistics_last(state))
    assert read_foreign(save(converted, tmp_path / "b.pth")).method.name == "byol"
    plain, _ = foreign_encoder(tmp_path / "a.pth")
    assert not torch.allclose(features(plain, pictures()), expected("byol", source, pictures()), atol=1e-3)


def test_basic_blocks_and_sequential_names(tmp_path: Path) -> None:
    source = narrow(bottleneck=False)
    encoder, weights = foreign_encoder(save(source.state_dict(), tmp_path / "a.pth"))
    assert str(weights.architecture) == "ResNet with 2+1+1+2 blocks, 4-8-8-12 channels"
    assert torch.equal(features(encoder, pictures()), features(source, pictures()))


def test_a_whole_resnet50(tmp_path: Path) -> None:
    source = randomised(torchvision.models.resnet50())
    encoder, weights = foreign_encoder(save(source.state_dict(), tmp_path / "resnet50.pth"))
    assert (weights.method.name, str(weights.architecture)) == ("torchvision", "ResNet-50")
    assert weights.leftovers == ("fc.weight", "fc.bias")
    assert encoder.num_features == 2048
    source.fc = nn.Identity()
    assert torch.equal(features(encoder, pictures()), features(source, pictures()))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("resnet18", "ResNet-18"),
        ("resnet34", "ResNet-34"),
        ("resnet101", "ResNet-101"),
        ("resnet152", "ResNet-152"),
        ("resnext50_32x4d", "ResNet-50, 32 groups, base width 4"),
        ("wide_resnet50_2", "ResNet-50, base width 128"),
    ],
)
def test_networks_are_read_off_the_shapes(name: str, title: str) -> None:
    with torch.device("meta"):
        state = getattr(torchvision.models, name)().state_dict()
    theirs = {n: tuple(t.shape) for n, t in state.items() if not n.startswith("fc.") and not n.endswith(COUNTER)}
    architecture = architecture_of({n: state[n] for n in theirs})
    assert architecture is not None
    assert str(architecture) == title
    assert expected_shapes(architecture, Traits()) == theirs


def test_twice_the_width_has_a_wider_stem(tmp_path: Path) -> None:
    """As RN50-w2: 128 channels in the stem, where timm has 64."""
    from timm.models.resnet import Bottleneck, ResNet, make_blocks

    source = ResNet(Bottleneck, (1, 1, 1, 1), channels=(8, 8, 8, 8), num_classes=0)
    source.conv1, source.bn1 = nn.Conv2d(3, 24, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(24)
    for name, stage in make_blocks((Bottleneck,) * 4, (8, 8, 8, 8), (1, 1, 1, 1), 24)[0]:
        setattr(source, name, stage)
    randomised(source)
    encoder, _ = foreign_encoder(save(source.state_dict(), tmp_path / "a.pth"))
    assert torch.equal(features(encoder, pictures()), features(source, pictures()))
