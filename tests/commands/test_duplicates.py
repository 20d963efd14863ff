"""`carp duplicates` on real files: the most certain groups first, the original is kept, and a list of the rest."""

import csv
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from carp.commands.duplicates import duplicates
from carp.errors import MissingExtraError
from tests.commands.conftest import Cli, assert_one_line

OLD, NEW = 1_600_000_000, 1_700_000_000


def photo(seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """Smooth colours with some grain, different for every seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    pixels = np.asarray(small.resize(size, Image.Resampling.BICUBIC), dtype=np.int16) + rng.integers(
        -6, 7, (*size[::-1], 3)
    )
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def save(image: Image.Image, path: Path, when: int, *, camera: bool = False) -> Path:
    exif = Image.Exif()
    if camera:
        exif[271], exif[272] = "Maker", "Model"
    image.save(path, quality=92, exif=exif)
    os.utime(path, (when, when))
    return path


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "bordered": lambda image: ImageOps.expand(image, 8, (250, 250, 250)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "mirrored": ImageOps.mirror,
    "half the size": lambda image: image.resize((48, 36)),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("evidence", ["older file", "camera data", "name"])
def test_the_original_is_kept(run: Path, tmp_path: Path, edit: str, evidence: str) -> None:
    """The copy comes first in the order of the data unless the name is all there is to go by."""
    image = photo(1)
    names = ("b.png", "b-edited.png") if evidence == "name" else ("z.png", "a.png")
    pair = tmp_path / "pair"
    pair.mkdir()
    save(image, pair / names[0], OLD if evidence == "older file" else NEW, camera=evidence == "camera data")
    save(EDITS[edit](image), pair / names[1], NEW)
    (group,) = duplicates(pair, run, out=tmp_path / "out", threshold=0.0).groups
    assert [Path(member.place).name for member in group.members] == list(names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pairs: the same bytes, a recompressed one, and two that only look alike; the last one in a large group."""
    photos = tmp_path / "my photos"
    photos.mkdir()
    for number in range(20):
        save(photo(number), photos / f"{number:02d}.png", OLD)
    shutil.copy(photos / "03.png", photos / "x again.png")
    save(Image.open(photos / "05.png"), photos / "y smaller file.jpg", NEW)
    return photos


def test_the_most_certain_groups_come_first(run: Path, folder: Path, tmp_path: Path) -> None:
    found = duplicates(folder, run, out=tmp_path / "out", threshold=0.999)
    names = [{Path(member.place).name for member in group.members} for group in found.groups]
    assert names[0] == {"03.png", "x again.png"}
    assert found.groups[0].is_identical
    agreements = [group.agreement for group in found.groups[1:]]
    assert agreements == sorted(agreements, reverse=True)
    assert {"05.png", "y smaller file.jpg"} in names
    assert found.groups[names.index({"05.png", "y smaller file.jpg"})].agreement > 0.99


@pytest.mark.parametrize("suffix", [".txt", ".nul", ".csv"])
def test_files_to_remove_are_listed_and_nothing_is_deleted(
    cli: Cli, run: Path, folder: Path, tmp_path: Path, suffix: str
) -> None:
    before = sorted(folder.iterdir())
    listed = tmp_path / "new folder" / f"remove{suffix}"
    code, out, err = cli(
        "duplicates", folder, "--model", run, "--out", tmp_path / "out", "--threshold", 1, "--remove-list", listed
    )
    assert code == 0, err
    assert str(listed) in out
    assert sorted(folder.iterdir()) == before
    text = listed.read_text()
    wanted = folder / "x again.png"
    if suffix == ".csv":
        (row,) = csv.DictReader(text.splitlines())
        assert (row["remove"], row["keep"]) == (str(wanted), str(folder / "03.png"))
        assert row["identical"] == "true"
    else:
        assert text == f"{wanted}{chr(0) if suffix == '.nul' else chr(10)}"


def test_a_list_that_could_not_be_read_back_is_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    assert_one_line(
        cli("duplicates", tmp_path, "--model", run, "--remove-list", tmp_path / "x.doc"), ".nul", ".csv", "x.doc"
    )
    photos = tmp_path / "photos"
    photos.mkdir()
    save(photo(1), photos / "a.png", OLD)
    shutil.copy(photos / "a.png", photos / "b\nc.png")
    words = ("duplicates", photos, "--model", run, "--out", tmp_path / "out", "--remove-list")
    assert_one_line((*cli(*words, tmp_path / "x.txt"),), "line break", ".nul")
    assert cli(*words, tmp_path / "x.nul")[0] == 0
    assert (tmp_path / "x.nul").read_text() == f"{photos}/b\nc.png\0"


def test_a_missing_faiss_is_reported_before_anything_is_encoded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr("carp.encoders.take_features.take_features", lambda *_: pytest.fail("something was encoded"))
    with pytest.raises(MissingExtraError, match=r"needs faiss.*carp-ssl\[eval\]"):
        duplicates(tmp_path, run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
