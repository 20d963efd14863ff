"""What is written to a pipe is for programs: one row per line, nothing folded, cut or drawn. Commands can be pasted."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

import carp
from carp.commands.index import index
from tests.commands.conftest import Cli

LINES = re.compile("[\u2500-\u257f]")  # the rules of tables


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """The command line where a terminal would have 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    return cli


def test_search_writes_one_row_for_every_image(narrow: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    photos = tmp_path / ("a long name " * 8).strip()
    shutil.copytree(labelled, photos)
    carp.embed(run, photos, tmp_path / "features")
    index(tmp_path / "features")
    images = sorted(photos.rglob("*.png"))[:2]
    code, out, err = narrow("search", tmp_path / "features", *images, "--k", 3)
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["query", "rank", "similarity", "image"]
    assert [row[0] for row in rows[1:]] == [str(image) for image in images for _ in range(3)]
    assert [row[1] for row in rows[1:]] == ["1", "2", "3"] * 2
    assert all(Path(row[3]).is_file() for row in rows[1:])


def test_duplicates_writes_all_groups(narrow: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(labelled, photos)
    files = sorted(photos.rglob("*.png"))[:12]
    for file in files:
        shutil.copy(file, file.with_name(f"copy of {file.name}"))
    code, out, err = narrow("duplicates", photos, "--model", run, "--out", tmp_path / "out", "--threshold", 1)
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert rows[0] == ["group", "keep", "agreement", "similarity", "size", "image"]
    assert {row[5] for row in rows[1:]} >= {str(file) for file in files}
    assert not LINES.search(out)


def test_tables_are_plain(narrow: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    for words in (
        ("eval", "knn", run, "--data", labelled, "--out", tmp_path),
        ("table", tmp_path),
        ("table", "--layout", "kmeans", "--with-paper"),
        ("datasets",),
        ("weights",),
    ):
        code, out, err = narrow(*words)
        assert code == 0, err
        assert not LINES.search(out), (words, out)
        assert "\x1b" not in out
        assert words == ("weights",) or "\u2026" not in out  # a name that was cut; two sources end in it


def test_the_next_command_can_be_pasted(cli: Cli, labelled: Path, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "it's my run; $HOME"
    code, text, err = cli("train", labelled, "--recipe", recipe, "--out", out)
    assert code == 0, err
    line = next(line for line in text.splitlines() if line.startswith("next: "))
    command, _, python = line.removeprefix("next: ").partition("   or in Python: ")
    assert shlex.split(command)[:4] == ["carp", "eval", "knn", str(out)]
    assert carp.load(eval(python.removeprefix("carp.load(").removesuffix(")"))).size
