"""`carp data attack`: what lies in the folder, and what happens when it is interrupted or given by mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from carp.commands.attack import attack
from carp.evaluation.ranked.copy_scores import copy_detection
from carp.evaluation.ranked.copy_sets import read_copies
from carp.features.extract import extract
from carp.images.inspect import attack_set as module
from carp.images.inspect.attacks import ATTACKS
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import by_name
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    coarse = tiny_images(6, 6)
    large = np.stack([np.array(Image.fromarray(x).resize((48, 48), Image.Resampling.BICUBIC)) for x in coarse])
    return write_images(tmp_path / "photos", large)


def test_folder_and_manifest(photos: Path, tmp_path: Path) -> None:
    made = attack(photos, out=tmp_path / "out")
    assert (made.originals, made.copies, made.unreadable) == (6, 6 * len(ATTACKS), [])
    stored = contents(tmp_path / "out")
    manifest = json.loads(stored["manifest.json"])
    names = [e["name"] for kind in ("originals", "copies") for e in manifest[kind]]
    assert set(stored) == {"manifest.json", "plan.json", *names}
    for entry in manifest["originals"]:
        assert stored[entry["name"]] == Path(entry["from"]).read_bytes(), "originals are as they were stored"
    for entry in manifest["copies"]:
        assert entry["name"].startswith(f"{entry['attack']}/{entry['strength']:g}/")
        assert Path(entry["name"]).stem == Path(entry["original"]).stem


def test_copies_are_found_by_the_protocol(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    attack(photos, out=out, attacks=["jpeg", "resize"], every_strength=True)
    found, source = read_copies(out), open_source(out)
    queries, originals = (
        extract(nn.Flatten(), by_name(source, names, named_by="it"), size=16, device=torch.device("cpu")).features
        for names in ([copy.name for copy in found.copies], found.originals)
    )
    values = copy_detection(queries, originals, found).values
    assert values["map_resize"] == 1.0
    assert values["map_jpeg_75"] == 1.0
    assert values["micro_ap"] > 0.9
    assert {f"map_jpeg_{s:g}" for s in ATTACKS["jpeg"].strengths} < set(values)


def test_deterministic_whatever_the_limit(photos: Path, tmp_path: Path) -> None:
    attack(photos, out=tmp_path / "a", seed=3)
    attack(photos, out=tmp_path / "b", seed=3)
    attack(photos, out=tmp_path / "few", seed=3, limit=2)
    attack(photos, out=tmp_path / "other", seed=4)
    first, again, few, other = (contents(tmp_path / name) for name in ("a", "b", "few", "other"))
    assert first == again
    copies = {name: raw for name, raw in few.items() if not name.endswith(".json")}
    assert len(copies) == 2 * (1 + len(ATTACKS))
    assert copies.items() <= first.items()
    assert other != first


def test_continues_where_it_was_interrupted(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(photos, out=tmp_path / "whole")
    real, calls = module.attacked, 0

    def interrupted(*arguments: Any, **named: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(module, "attacked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attack(photos, out=tmp_path / "parts")
    assert not (tmp_path / "parts" / "manifest.json").exists()
    attack(photos, out=tmp_path / "parts")
    assert calls == 20 + 6 * len(ATTACKS) - 19, "what was there is not made again"
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_nothing_foreign_is_overwritten(photos: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("mine")
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "full"), "is not empty")
    assert contents(tmp_path / "full") == {"diary.txt": b"mine"}
    (tmp_path / "file").touch()
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "file"), "is a file")
    attack(photos, out=tmp_path / "out")
    result = cli("data", "attack", photos, "--out", tmp_path / "out", "--seed", 1)
    assert_one_line(result, "seed was 0 and is 1 now")
    (photos / "new.png").write_bytes((photos / "000.png").read_bytes())
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "out", "--limit", 6), "other than those in")
    assert_one_line(cli("data", "attack", photos, "--out", photos / "out"), "is inside")
    (tmp_path / "out" / "plan.json").write_text("[")
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "out"), "other settings")


def test_bad_images_are_left_out(photos: Path, tmp_path: Path, cli: Cli) -> None:
    (photos / "003.png").write_bytes(b"no image")
    code, out, err = cli("data", "attack", photos, "--out", tmp_path / "out")
    assert code == 0
    assert "originals: 5 " in out
    assert "skipped: cannot read the image" in err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert len(manifest["originals"]) == 5
    assert len(manifest["unreadable"]) == 1
    for path in photos.iterdir():
        path.write_bytes(b"")
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "none"), "none of the 6 images")


def test_images_in_memory_are_kept_without_loss(tmp_path: Path) -> None:
    images = tiny_images(2)
    attack(ArraySource(images), out=tmp_path / "out", attacks=["blur"])
    kept = [np.array(Image.open(path)) for path in sorted((tmp_path / "out" / "original").iterdir())]
    assert np.array_equal(np.stack(kept), images)


def test_command_and_sheet(photos: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, _ = cli(
        *("data", "attack", photos, "--out", tmp_path / "out", "--attacks", "jpeg,crop", "--attacks", "text"),
        *("--limit", 3, "--sheet", tmp_path / "sheet.png", "--every-strength"),
    )
    assert code == 0
    count = sum(len(ATTACKS[name].strengths) for name in ("jpeg", "crop", "text"))
    assert f"originals: 3   copies: {3 * count}" in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = sheet.convert("RGB").getcolors(2**20)
    assert colours is None or len(colours) > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attacks", "jpg"], "there is no attack 'jpg'. Did you mean 'jpeg'?"),
        (["--limit", "0"], "invalid value for '--limit'"),
        (["--sheet", "sheet.jpg"], "must end in .png"),
        (["--seed", "-1"], "invalid value for '--seed'"),
    ],
)
def test_mistakes(photos: Path, tmp_path: Path, cli: Cli, words: list[str], message: str) -> None:
    assert_one_line(cli("data", "attack", photos, "--out", tmp_path / "out", *words), message)
    assert not (tmp_path / "out").exists()


def test_overlay_needs_another_image(tmp_path: Path, cli: Cli) -> None:
    one = write_images(tmp_path / "one", tiny_images(1))
    assert_one_line(cli("data", "attack", one, "--out", tmp_path / "out"), "'overlay' needs a second")
    assert cli("data", "attack", one, "--out", tmp_path / "out", "--attacks", "jpeg")[0] == 0
