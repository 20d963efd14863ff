"""`carp weights` through the command line."""

import json
import re
from pathlib import Path

import pytest
import torch

from carp.features.foreign import METHODS
from tests.commands.conftest import Cli, assert_one_line
from tests.features.foreign.layouts import narrow, released


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
            rf"^  {re.escape(method.name)} +{re.escape(method.title)}.* {re.escape(method.source)}$", out, re.M
        )
    assert re.search(r"^  moco-v3 +MoCo-v3 +1000 +74\.6 +68\.9 +59\.2 ", out, re.M)  # the paper's numbers
    assert re.search(r"^  carl +CARL \(layout not verified\)", out, re.M)


def test_the_table_as_json(cli: Cli) -> None:
    code, out, _ = cli("weights", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert list(rows) == [method.name for method in METHODS]
    assert rows["swav"]["published"] == {"linear": 75.3, "k-NN": 66.3, "k-NN, 8 sets": 54.4}
    assert rows["moco-v3"]["prefixes"] == ["base_encoder."]
    assert rows["simclr"]["mean"] == [0, 0, 0]


def test_every_row_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "weights.md").read_text().split("## How")[0]
    assert [method.name for method in METHODS] == re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.M)
    assert all(method.source in text for method in METHODS)


def test_a_file_is_recognised(cli: Cli, moco: Path) -> None:
    code, out, err = cli("weights", moco)
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert lines["format"] == "moco-v2: MoCo-v2"
    assert lines["encoder"].startswith("ResNet with 2+1+1+2 blocks, 4-8-8-12 channels, ")
    assert lines["left over"].startswith("encoder_q.fc.0.weight, encoder_q.fc.2.weight, encoder_k.conv1.weight")
    assert lines["beside"] == "arch, args, epoch, optimizer"
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
    assert_one_line(cli("weights", f"mocov2:{moco}"), "there are no weights 'mocov2'. Did you mean 'moco-v2'?")
    (tmp_path / "a.pth").write_text("hello, this is text")
    assert_one_line(cli("weights", tmp_path / "a.pth"), "is not a file of weights")
    assert_one_line(cli("weights", tmp_path), "is a folder")


def test_a_path_with_a_colon(cli: Cli, moco: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run:3.pth"
    copy.write_bytes(moco.read_bytes())
    assert cli("weights", copy)[0] == 0
    assert cli("weights", f"moco-v2:{copy}")[0] == 0
