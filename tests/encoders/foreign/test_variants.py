"""Networks that are nearly ResNets: each loads with the features of its source, or is refused in one line."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from carp.encoders.foreign import foreign_encoder, read_foreign
from carp.errors import CheckpointError
from tests.encoders.foreign.layouts import pictures, randomised

SHORT = {"layers": (1, 1, 1, 1)}
LOAD = {
    "resnet50": SHORT,
    "resnet18": SHORT,
    "wide_resnet50_2": SHORT,
    "resnext50_32x4d": SHORT,
    "resnext101_32x8d": SHORT,
}
REFUSED = {
    "seresnet50": SHORT,
    "seresnext50_32x4d": SHORT,
    "ecaresnet50t": SHORT,
    "resnest50d": SHORT,
    "resnet50d": SHORT,
    "resnet50t": SHORT,
    "resnet50c": SHORT,
    "resnet50_gn": SHORT,
    "skresnet50": SHORT,
    "resnetrs50": SHORT,
    "res2net50_26w_4s": SHORT,
    "resnetv2_50": SHORT,
    "gcresnet33ts": {},
    "resnet50_clip": {},
    "regnety_002": {},
}
# Other computations without any tensor of their own: nothing in a file shows them
UNSEEN = {"resnetblur50": SHORT, "resnetaa50": SHORT}


def saved(name: str, options: dict[str, object], path: Path) -> nn.Module:
    module = randomised(timm.create_model(name, num_classes=10, **options))
    torch.save(module.state_dict(), path)
    return module


@pytest.mark.parametrize("name", LOAD)
def test_plain_networks_load_exactly(name: str, tmp_path: Path) -> None:
    module = saved(name, LOAD[name], tmp_path / "a.pth")
    encoder, _ = foreign_encoder(tmp_path / "a.pth")
    module.reset_classifier(0)
    with torch.inference_mode():
        assert torch.equal(encoder(pictures()), module(pictures()))


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    if not timm.is_model(name):
        pytest.skip(f"this timm has no {name}")
    saved(name, REFUSED[name], tmp_path / "a.pth")
    with pytest.raises(CheckpointError) as caught:
        read_foreign(tmp_path / "a.pth")
    assert "\n" not in str(caught.value)


def test_a_whole_se_resnet50_names_its_first_unknown_tensors(tmp_path: Path) -> None:
    module = randomised(timm.create_model("seresnet50"))
    for found in (module.state_dict(), {"state_dict": {f"module.{n}": t for n, t in module.state_dict().items()}}):
        torch.save(found, tmp_path / "a.pth")
        for method in (None, "torchvision", "timm", "resnet"):
            with pytest.raises(CheckpointError, match=r"layer1\.0\.se\.fc1\.weight, .* and 61 more\)"):
                read_foreign(tmp_path / "a.pth", method)


def test_filters_of_anti_aliased_networks_are_seen_where_they_are_saved(tmp_path: Path) -> None:
    """antialiased-cnns keeps its fixed filters in the state dict, timm does not."""
    module = randomised(timm.create_model("resnet18", num_classes=0, **SHORT))
    state = {**module.state_dict(), "layer2.0.downsample.2.filt": torch.ones(64, 1, 3, 3)}
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"layer2\.0\.downsample\.2\.filt"):
        read_foreign(tmp_path / "a.pth")


@pytest.mark.parametrize("name", UNSEEN)
def test_variants_that_no_file_shows_are_documented(name: str) -> None:
    """Should they get tensors of their own one day, this fails: then refuse them and change docs/weights.md."""
    with torch.device("meta"):
        theirs, plain = (timm.create_model(n, **SHORT).state_dict() for n in (name, "resnet50"))
    assert {n: t.shape for n, t in theirs.items()} == {n: t.shape for n, t in plain.items()}
    assert f"`{name}`" in (Path(__file__).parents[3] / "docs" / "weights.md").read_text()
