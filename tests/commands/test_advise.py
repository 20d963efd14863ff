"""`carp advise`: one call from images to a recommendation, the same as JSON, as text and as a page; its mistakes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import carp
from carp.commands import advise as command
from carp.errors import ConfigError
from tests.commands.conftest import HOSTILE, Cli, assert_one_line
from tests.helpers import tiny_images, write_images


@pytest.fixture(autouse=True)
def without_packaged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra [start] were not installed: its network takes long for a test."""
    monkeypatch.setattr(command, "DEFAULT", replace(command.DEFAULT, package="carp_has_no_such_package"))


def test_the_same_as_json_on_a_page_and_with_hostile_names(cli: Cli, hostile: Path, run: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(hostile.glob("*/*"))):  # smaller; those with hostile names are copies
        pixels = tiny_images(1, 16, seed=99 if path.name in HOSTILE else number)[0]
        Image.fromarray(pixels).save(path, "png")
    code, out, err = cli("advise", hostile, "--model", run, "--json", "--out", tmp_path / "advice")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found == json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert (found["images"]["images"], found["images"]["looked_at"]) == (40, 40)
    assert found["images"]["classes"] == {"class-0": 20, "class-1": 20}
    assert sum(group["count"] - 1 for group in found["images"]["duplicates"]) == 5
    assert [(row["name"], row["kind"]) for row in found["probes"]] == [
        (str(run), "model"),
        ("raw pixels", "baseline"),
        ("untrained", "baseline"),
    ]
    for row in found["probes"]:
        assert 0 <= row["views"]["low"] <= row["views"]["value"] <= row["views"]["high"] <= 1
        assert 0 <= row["knn"]["value"] <= 1
        assert row["knn"]["images"] == 40
        assert row["knn"]["error"] > 0
    advice = found["recommendation"]
    assert (advice["action"], advice["model"]) == ("use", str(run))  # few images
    assert advice["command"] == f"carp embed {run} --data {hostile} --out images.features"
    assert advice["rules"]
    assert advice["unknown"]
    page = (tmp_path / "advice" / "advice.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page


def test_the_same_in_words(cli: Cli, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(30, 16))
    (folder / "bad\x1b[2J.png").write_bytes(b"")
    (folder / "dark\n.png").write_bytes((folder / "000.png").read_bytes())
    write_images(tmp_path / "dark", (tiny_images(1, 16, seed=5) // 8).astype(np.uint8))
    (tmp_path / "dark" / "000.png").replace(folder / "dark\n.png")
    code, out, err = cli("advise", folder)
    assert code == 0, err
    assert "no model to measure" in err
    assert "--model" in err
    assert "\x1b" not in out
    for part in (
        f"images           32 in {folder}\n",
        "classes          no labels\n",
        "unreadable       1 (3.1%; cannot be decoded)\n",
        "bad\\x1b[2J.png: the file is empty\n",
        "dark             1 (3.2%; ",
        "dark\\n.png\n",
        "advice           collect more images\n",
        "command          carp data check ",
        "rule of thumb    Fewer than 300 images",
    ):
        assert part in out
    assert re.search(r"raw pixels +16  \d", out)
    assert re.search(r"untrained +16  \d", out)


def test_validation_images_are_asked_and_the_images_vote(run: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(24, 16), classes=3)
    validation = write_images(tmp_path / "validation", tiny_images(12, 16, seed=9), classes=3)
    found = carp.advise(images, model=run, validation=validation)
    assert not found.leave_one_out
    assert {probe.knn.images for probe in found.probes if probe.knn} == {12}
    assert found.findings.near is not None
    assert found.findings.near.encoder == str(run)
    assert isinstance(found, carp.Advice)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pilot", 0), ("--pilot", "more than 0", "received 0")),
        (("--minutes", -1), ("--minutes", "received -1")),
        (("--size", 0), ("--size", "received 0")),
        (("--model", "nothing/here"), ("nothing/here",)),
        (("--validation", "nothing/there"), ("nothing/there",)),
        (("--device", "abacus"), ("abacus",)),
    ],
)
def test_a_mistake_is_one_line(cli: Cli, flat: Path, options: tuple[object, ...], words: tuple[str, ...]) -> None:
    assert_one_line(cli("advise", flat, *options), *words)


def test_mistakes_about_images_are_one_line(cli: Cli, flat: Path, run: Path, tmp_path: Path) -> None:
    assert_one_line(cli("advise", tmp_path / "none"), "none")
    assert_one_line(cli("advise", flat, "--model", run, "--validation", flat), "no labels")
    (tmp_path / "file").touch()
    assert_one_line(cli("advise", flat, "--model", run, "--out", tmp_path / "file"), "is a file", "--out")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes(b"")
    assert_one_line(cli("advise", broken, "--model", run), "can be read", "a.png")


def test_infinite_time_is_a_mistake(flat: Path) -> None:
    with pytest.raises(ConfigError, match="--minutes must be more than 0, received nan"):
        carp.advise(flat, minutes=float("nan"))
