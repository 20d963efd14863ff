"""File names that are commands to a terminal, through the command line: harmless on the screen, exact in JSON."""

import json
import os
from pathlib import Path

import pytest

from tests.commands.conftest import Cli
from tests.helpers import tiny_images, write_images

NAMES = ["\x1b[2J\x1b]0;owned\x07.png", "line\nbreak.png", "\udcff\udcfe.png", "\u202egnp.png"]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Twelve images and four that are broken, all in a folder with a name that clears the screen."""
    folder = write_images(tmp_path / "\x1b[2Jimages", tiny_images(12))
    for name in NAMES:
        (folder / name).write_bytes(b"broken")
    return folder


def harmless(*texts: str) -> None:
    for text in texts:
        assert all(c.isprintable() or c in "\n\t" for c in text), [c for c in text if not c.isprintable()]


def test_messages_warnings_and_tables_are_harmless(cli: Cli, tmp_path: Path, hostile: Path, run: Path) -> None:
    small = ("batch_size=4", "epochs=1", "global_size=32", "device=cpu")
    code, out, err = cli("data", "check", hostile, *small)
    assert code == 1
    harmless(out, err)
    assert "\\x1b[2J" in out
    assert out.count("\n") == out.count("\n", 0, len(out))
    code, out, err = cli("train", hostile, "--out", tmp_path / "run", "max_bad_share=0.5", *small)
    assert code == 0, err
    harmless(out, err)
    assert "line\\nbreak.png" in err
    code, out, err = cli("train", hostile, "--out", tmp_path / "run-two", "max_bad_share=0", *small)
    assert code == 5
    harmless(out, err)
    code, out, err = cli("embed", run, "--data", hostile, "--out", tmp_path / "features")
    assert code == 0, err
    harmless(out, err)
    assert cli("index", tmp_path / "features", "--kind", "exact")[0] == 0
    code, out, err = cli("search", tmp_path / "features", hostile / "000.png", "--k", 3)
    assert code == 0, err
    harmless(out, err)
    assert "\\x1b[2J" in out
    code, out, err = cli("train", tmp_path / NAMES[0], "--out", tmp_path / "none")
    assert code == 2
    assert err.count("\n") == 1
    harmless(out, err)


def test_json_keeps_names_as_they_are(cli: Cli, hostile: Path) -> None:
    _, out, _ = cli("data", "check", hostile, "--json", "global_size=32", "device=cpu")
    places = {bad["place"] for bad in json.loads(out)["broken"]}
    assert places == {os.fspath(hostile / name) for name in NAMES}
