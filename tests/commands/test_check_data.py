"""`carp data check`: everything that it promises to find is there, and found."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import carp
from carp.errors import ConfigError, DataError
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """Three classes of 10, 10 and 11 images: three broken, a group of three copies, one of two, one tiny image."""
    folder = write_images(tmp_path / "messy", tiny_images(30, 80), classes=3)
    (folder / "class-0" / "000.png").write_bytes(b"")
    cut = folder / "class-1" / "001.png"
    cut.write_bytes(cut.read_bytes()[:4000])  # its head is whole
    (folder / "class-2" / "notes.jpg").write_text("these are notes")
    for copy in ("class-0/006.png", "class-2/008.png"):
        (folder / copy).write_bytes((folder / "class-0" / "003.png").read_bytes())
    (folder / "class-1" / "013.png").write_bytes((folder / "class-1" / "010.png").read_bytes())
    Image.new("RGB", (50, 30)).save(folder / "class-2" / "005.png", "jpeg")
    return folder


def test_everything_is_found(cli: Cli, messy: Path) -> None:
    code, out, err = cli("data", "check", messy, "--json", "global_size=96")
    assert (code, err) == (1, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["ok"] is False
    assert (found["images"], found["looked_at"]) == (31, 31)
    assert found["formats"] == {"PNG": 27, "JPEG": 1}
    assert found["width"] == {"min": 50, "median": 80, "max": 80}
    assert found["height"] == {"min": 30, "median": 80, "max": 80}
    assert found["bytes_each"]["min"] == 0
    assert found["bytes_in_all"] == sum(path.stat().st_size for path in messy.glob("*/*"))
    assert found["classes"] == {"class-0": 10, "class-1": 10, "class-2": 11}
    reasons = {Path(bad["place"]).name: bad["reason"] for bad in found["broken"]}
    assert reasons.keys() == {"000.png", "001.png", "notes.jpg"}
    assert reasons["000.png"] == "the file is empty"
    assert reasons["001.png"] == "image file is truncated"
    assert found["empty"] == 1
    assert [(group["count"], [Path(place).name for place in group["places"]]) for group in found["duplicates"]] == [
        (3, ["003.png", "006.png", "008.png"]),
        (2, ["010.png", "013.png"]),
    ]
    assert found["small"] == 1
    times = {int(workers): seconds for workers, seconds in found["seconds_an_epoch"].items()}
    assert 1 in times
    assert all(seconds == pytest.approx(times[1] / workers) for workers, seconds in times.items())
    assert 0 < times[1] < 60


def test_the_same_in_words(cli: Cli, messy: Path) -> None:
    code, out, err = cli("data", "check", messy, "global_size=96")
    assert code == 1, err
    for part in (
        f"images       31 in {messy}\n",
        "formats      PNG 27, JPEG 1\n",
        "width        50 to 80, median 80 pixels\n",
        "classes      3\n  class-0: 10\n",
        "broken       3 cannot be read, 1 of them empty files\n",
        f"  {messy / 'class-1' / '001.png'}: image file is truncated\n",
        "duplicates   3 in 2 groups\n",
        "  2 × ",
        "small        1 have a side of at most half of global_size=96\n",
        " with 1 worker",
    ):
        assert part in out, out


def test_a_whole_folder_is_exit_code_0(cli: Cli, flat: Path) -> None:
    code, out, err = cli("data", "check", flat, "--recipe", "small-images", "global_size=32")
    assert code == 0, err
    assert "broken       none\n" in out
    assert "duplicates   none\n" in out
    assert "classes      no labels\n" in out
    assert "to read them once" in out


def test_long_lists_are_cut_on_the_screen_and_whole_in_json(cli: Cli, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(30))
    for number in range(25):
        (folder / f"{number:03d}.png").write_bytes(b"")
    _, out, _ = cli("data", "check", folder, "global_size=32")
    assert "… and 15 more (--json lists all)" in out
    _, out, _ = cli("data", "check", folder, "global_size=32", "--json")
    assert [bad["index"] for bad in json.loads(out)["broken"]] == list(range(25))


def test_nothing_but_broken_files(cli: Cli, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(5))
    for path in folder.iterdir():
        path.write_bytes(b"")
    for settings in ([], ["global_size=32"]):
        code, out, err = cli("data", "check", folder, *settings)
        assert code == 1, err
        assert "broken       5 cannot be read, 5 of them empty files\n" in out
        assert "not measured: too few images can be read" in out


def test_a_limit_checks_a_random_sample_and_keeps_the_numbers_of_the_images(messy: Path) -> None:
    whole = carp.check_data(messy, global_size=32)
    by_index = {bad.index: bad for bad in whole.found.broken}
    seen = set()
    for limit in (10, 20, 31, 1000):
        part = carp.check_data(messy, limit=limit, global_size=32)
        assert part.images == 31
        assert part.found.images == min(limit, 31)
        assert sum(part.found.classes.values()) == min(limit, 31)
        assert all(by_index[bad.index] == bad for bad in part.found.broken)
        seen |= {bad.index for bad in part.found.broken}
    assert seen == set(by_index)


def test_arrays_and_embedded_sets_can_be_checked() -> None:
    images = tiny_images(20)
    images[7] = images[3]
    found = carp.check_data(images, global_size=32, batch_size=4)
    assert found.ok
    assert found.found.formats == {"pixels": 20}
    assert [(group.count, group.places) for group in found.found.duplicates] == [(2, ["array[3]", "array[7]"])]
    tall = np.zeros((2, 8, 16, 3), dtype=np.uint8)
    assert carp.check_data(tall, global_size=8).found.duplicates[0].count == 2
    assert carp.check_data("embedded:shapes-test", "small-images", limit=50).ok


@pytest.mark.skipif(sys.platform != "linux", reason="file names must be text here")
def test_a_name_that_is_not_utf8_is_shown(cli: Cli, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(3))
    os.rename(os.fsencode(folder / "001.png"), os.fsencode(folder) + b"/\xff.png")  # noqa: PTH104 - a name in bytes
    next(folder.glob("*.png")).parent.joinpath("000.png").write_bytes(b"")
    os.truncate(os.fsencode(folder) + b"/\xff.png", 0)
    code, out, _ = cli("data", "check", folder, "global_size=32")
    assert code == 1
    assert "xff.png: the file is empty" in out.replace("\\udc", "x")


def test_mistakes_are_one_line(cli: Cli, tmp_path: Path, flat: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_one_line(cli("data", "check", "no/such/place"), "no/such/place", "Give a folder")
    assert_one_line(cli("data", "check", "no/such/place", "--json"), "no/such/place", "Give a folder")
    assert_one_line(cli("data", "check", tmp_path / "empty"), "no images", str(tmp_path / "empty"))
    assert_one_line(cli("data", "check", flat, "max_bad_share=7"), "accepted: 0 to 1", "received 7")
    assert_one_line(cli("data", "check", flat, "--recipe", "foldr"), "'foldr'", "Did you mean 'folder'?")
    assert_one_line(cli("data", "check", flat, "--jsn"), "no option '--jsn'", "Did you mean '--json'?")
    with pytest.raises(ConfigError, match="limit must be at least 1, received 0"):
        carp.check_data(flat, limit=0)
    with pytest.raises(DataError, match="there is no folder"):
        carp.check_data("nowhere")


def test_a_missing_file_is_broken_but_not_empty(cli: Cli, flat: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{flat / '000.png'}\n{flat / '001.png'}\nabsent.png\n")
    found = json.loads(cli("data", "check", tmp_path / "list.txt", "--json", "batch_size=2")[1])
    assert [bad["reason"] for bad in found["broken"]] == ["there is no such file"]
    assert found["empty"] == 0
