"""`carp weights` through the command line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from carp.encoders.foreign import BY_NAME, METHODS
from tests.commands.conftest import Cli, assert_one_line
from tests.encoders.foreign.layouts import narrow, released
from tests.encoders.foreign.test_vit import dino, dino_file, transformer
from tests.helpers import tiny_images


@pytest.fixture(scope="module")
def moco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "checkpoint.pth.tar"
    torch.save(released("moco-v2", narrow().state_dict())[0], path)
    return path


def test_the_table(cli: Cli) -> None:
    code, out, err = cli("weights")
    assert (code, err) == (0, "")
    for method in METHODS:
        assert re.search(
            rf"^{re.escape(method.name)} +{re.escape(method.title)}.* {re.escape(method.source)}$", out, re.M
        )
    assert re.search(r"^moco-v3 +MoCo-v3 +1000 +74\.6 +68\.9 +59\.2 ", out, re.M)  # the paper's numbers
    assert re.search(r"^carl +CARL \(layout not verified\)", out, re.M)


def test_the_table_as_json(cli: Cli) -> None:
    code, out, _ = cli("weights", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert list(rows) == [method.name for method in METHODS]
    assert rows["swav"]["published"] == {"linear": 75.3, "k-NN": 66.3, "k-NN, 8 sets": 54.4}
    assert rows["moco-v3"]["prefixes"] == ["base_encoder."] * 2
    assert rows["moco-v3"]["families"] == ["resnet", "vit"]
    assert rows["simclr"]["mean"] == [0, 0, 0]


def test_every_row_is_documented() -> None:
    text = (
        (Path(__file__).parents[2] / "docs" / "weights.md")
        .read_text()
        .partition("## Supported")[2]
        .partition("## How")[0]
    )
    assert [method.name for method in METHODS] == re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.M)
    assert all(method.source in text for method in METHODS)


def test_a_file_is_recognised(cli: Cli, moco: Path) -> None:
    code, out, err = cli("weights", moco)
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert lines["format"] == "moco-v2: MoCo-v2"
    assert lines["encoder"].startswith("ResNet with 2+1+1+2 blocks, 4-8-8-12 channels, ")
    assert lines["left over"].startswith("encoder_q.fc.0.weight, encoder_q.fc.2.weight, encoder_k.conv1.weight")
    assert lines["others"] == "arch, args, epoch, optimizer"
    assert "unexpected" not in lines


def test_a_file_as_json(cli: Cli, moco: Path) -> None:
    code, out, _ = cli("weights", f"pcl-v2:{moco}", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["method"], found["path"], found["size"]) == ("pcl-v2", str(moco), 224)
    assert found["tensors"] == 5 * (1 + 6 * 3 + 4)  # a convolution has one tensor, its batch norm four
    assert "queue" in found["leftovers"]


def test_mistakes_are_one_line(cli: Cli, moco: Path, tmp_path: Path) -> None:
    assert_one_line(cli("weights", tmp_path / "nothing.pth"), "cannot read the weights", "No such file")
    assert_one_line(cli("weights", f"swav:{moco}"), "not in the format of swav: it looks like moco-v2")
    assert_one_line(cli("weights", f"mocov2:{moco}"), "'mocov2' is not a format of weights. Did you mean 'moco-v2'?")
    (tmp_path / "a.pth").write_text("hello, this is text")
    assert_one_line(cli("weights", tmp_path / "a.pth"), "is not a weights file")
    assert_one_line(cli("weights", tmp_path), "is a folder")


def test_a_path_with_a_colon(cli: Cli, moco: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run:3.pth"
    copy.write_bytes(moco.read_bytes())
    assert cli("weights", copy)[0] == 0
    assert cli("weights", f"moco-v2:{copy}")[0] == 0


def test_a_vision_transformer_is_embedded_and_evaluated(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    """The command line gives the class token of the images that it prepared, and k-NN runs on it."""
    state = transformer(size=32).state_dict()
    path, bare = tmp_path / "vit.pth", tmp_path / "bare.pth"
    torch.save(dino_file(state), path)
    torch.save(state, bare)
    assert cli("embed", path, "--data", labelled, "--out", tmp_path / "store")[0] == 0
    stored = np.load(tmp_path / "store" / "features.npy")
    shown = tiny_images(66)[::3]  # the first class
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (BY_NAME["dino"].mean, BY_NAME["dino"].std))
    pixels = (torch.from_numpy(shown).permute(0, 3, 1, 2) / 255 - mean) / std
    np.testing.assert_allclose(stored[: len(shown)], dino(state, pixels, 2).numpy(), rtol=1e-4, atol=1e-4)
    code, out, err = cli("eval", "knn", path, "--data", labelled, "--out", tmp_path / "results")
    assert code == 0, err
    assert list((tmp_path / "results").rglob("*.json"))
    code, out, _ = cli("weights", path)
    assert code == 0
    assert "ViT/16 of width 128, 2 blocks (2 heads, 32 px)" in out
    assert_one_line(cli("embed", bare, "--data", labelled, "--out", tmp_path / "b"), "timm-vit:", "deit:", "dino:")
    assert cli("embed", f"dino:{bare}", "--data", labelled, "--out", tmp_path / "b")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "b" / "features.npy"), stored)


def test_equals_say_how_to_choose(cli: Cli, tmp_path: Path) -> None:
    torch.save(narrow().state_dict(), tmp_path / "a.pth")
    code, out, _ = cli("weights", tmp_path / "a.pth")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert lines["choose"].startswith("dino, barlow-twins, vicreg: ")
    assert "the same features" in lines["choose"]
    assert f"dino:{tmp_path / 'a.pth'}" in lines["choose"]
    assert "must give NAME:FILE" in cli("weights")[1]


def test_a_converted_network_is_doubted(cli: Cli, tmp_path: Path) -> None:
    """Keras' ResNet has the keys of torchvision's; that it was never trained in PyTorch is all that shows."""
    state = narrow().state_dict()
    torch.save(state, tmp_path / "trained.pth")
    torch.save({n: torch.zeros_like(t) if n.endswith("tracked") else t for n, t in state.items()}, tmp_path / "a.pth")
    assert "caution " not in cli("weights", tmp_path / "trained.pth")[1]
    assert f"resnet-v1:{tmp_path / 'a.pth'}" in cli("weights", tmp_path / "a.pth")[1]
    assert "caution " not in cli("weights", f"resnet-v1:{tmp_path / 'a.pth'}")[1]
