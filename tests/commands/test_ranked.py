"""`carp eval retrieval` and `copies` through the command line: what is told and what is refused."""

import json
from pathlib import Path

import pytest

import carp
from carp.commands.attack import attack
from tests.commands.conftest import Cli, assert_one_line


def test_relevant_images_of_one_folder(cli: Cli, run: Path, flat: Path, tmp_path: Path) -> None:
    """Without queries every image asks, and does not find itself."""
    relevance = tmp_path / "relevance.csv"
    relevance.write_text("query,image\n" + "".join(f"{i:03d}.png,{i + 1:03d}.png\n" for i in range(10)))
    words = ["eval", "retrieval", run, "--out", tmp_path, "--branch", "teacher", "--data", flat]
    code, out, err = cli(*words, "--truth", relevance)
    assert code == 0, err
    assert "Retrieval, mP@1 " in out
    (path,) = (tmp_path / "results").glob("retrieval-*.json")
    details = json.loads(path.read_text())["details"]
    assert details["left_out"] == len(list(flat.iterdir())) - 10


def test_mistakes(cli: Cli, run: Path, flat: Path, labelled: Path, tmp_path: Path) -> None:
    words = ["eval", "retrieval", run, "--out", tmp_path]
    assert_one_line(cli(*words, "--data", flat), "has no labels", "--truth FILE.csv")
    assert_one_line(cli(*words, "--data", labelled, "--size", 64), "no option '--size'", "--max-side")
    assert_one_line(cli("eval", "copies", run, "--data", labelled, "side=0"), "side must be", "1, received 0")
    assert_one_line(cli("eval", "copies", run, "--data", labelled, "--size", 64), "Did you mean '--side'?")
    assert_one_line(cli("eval", "copies", run, "--data", labelled), "no copies", "carp data attack")


@pytest.mark.parametrize("written", ["depth=None", "depth=null"])
def test_a_setting_without_a_limit_is_none_as_documented(
    written: str, cli: Cli, run: Path, flat: Path, tmp_path: Path
) -> None:
    attack(flat, out=tmp_path / "copies", attacks=["blur"], limit=30)
    words = ["eval", "copies", run, "--data", tmp_path / "copies", "side=32", "--branch", "teacher", "--out", tmp_path]
    for setting in ("depth=1", written):
        code, _, err = cli(*words, setting)
        assert code == 0, err
    found = {
        read["settings"]["depth"]: read["values"]["map"]
        for read in (json.loads(path.read_text()) for path in (tmp_path / "results").iterdir())
    }
    assert found["all"] > found[1]
    result = carp.evaluate("copies", run, tmp_path / "copies", side=32, depth=None, out=tmp_path)
    assert result.values["map"] == found["all"]


def test_whole_queries_are_none_as_documented(run: Path, labelled: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in labelled.glob("*/*.png"))
    one = {"bbx": [0.0, 0.0, 16.0, 16.0], "easy": [1], "hard": [2], "junk": []}
    truth = {"imlist": names[1:], "qimlist": names[:1], "gnd": [one]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    values = {}
    for boxes in (True, False, None, "None"):
        result = carp.evaluate(
            "retrieval", run, labelled, truth=tmp_path / "truth.json", boxes=boxes, out=tmp_path / "out"
        )
        assert result.settings["boxes"] is (boxes is True)
        assert "name" not in result.data, "one query is not revisited Oxford"
        values[boxes] = result.values
    assert values[False] == values[None] == values["None"]


def test_a_misspelt_method(cli: Cli, tmp_path: Path, flat: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"")
    model = f"swva:{tmp_path / 'weights.pth'}"
    assert_one_line(cli("embed", model, "--data", flat, "--out", tmp_path / "x"), "'swva'", "'swav'")
