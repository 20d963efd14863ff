"""`carp eval retrieval` and `copies` through the command line: what is told and what is refused."""

import json
from pathlib import Path

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
    assert_one_line(cli(*words, "--data", labelled, "--size", 64), "its own rule for the size", "max_side=224")
    assert_one_line(cli(*words, "--data", labelled, "--precision", "bf16"), "computes in fp32")
    assert_one_line(cli("eval", "retrieval", "--data", labelled), "in their own sizes: give a run folder or weights")
    assert_one_line(cli("eval", "copies", run, "--data", labelled, "side=0"), "side must be at least 1 pixel")
    assert_one_line(cli("eval", "copies", run, "--data", labelled, "--size", 64), "side=320")
    assert_one_line(cli("eval", "copies", run, "--data", labelled), "holds no copies", "carp data attack")


def test_a_misspelt_method(cli: Cli, tmp_path: Path, flat: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"")
    model = f"swva:{tmp_path / 'weights.pth'}"
    assert_one_line(cli("embed", model, "--data", flat, "--out", tmp_path / "x"), "no weights 'swva'", "'swav'")
