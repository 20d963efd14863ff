"""`carp index`, `carp search`, `carp duplicates`: from images to answers, and every mistake in one line."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import carp
from carp.commands.duplicates import duplicates
from carp.commands.index import index
from carp.commands.search import search
from carp.errors import ConfigError, DataError
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 different images of 32 pixels, of which one has two names, and one a copy of twice its size."""
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    large = np.stack([np.array(Image.fromarray(x).resize((32, 32), Image.Resampling.BICUBIC)) for x in smooth])
    folder = write_images(tmp_path_factory.mktemp("photos"), large)
    shutil.copy(folder / "004.png", folder / "again <&> [bold].png")
    Image.open(folder / "007.png").resize((64, 64), Image.Resampling.BICUBIC).save(folder / "twice.png")
    return folder


@pytest.fixture(scope="module")
def made(photos: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index."""
    store = tmp_path_factory.mktemp("store") / "features"
    carp.embed(run, photos, store)
    return index(store).folder


def test_every_image_finds_itself(made: Path, photos: Path) -> None:
    found = search(made, photos, k=3)
    assert len(found) == 32
    for one in found:
        assert one.matches[0].similarity == pytest.approx(1.0, abs=1e-5)
        same = {m.place for m in one.matches if m.similarity > 1 - 1e-6}
        assert one.query in same
        assert [m.similarity for m in one.matches] == sorted((m.similarity for m in one.matches), reverse=True)


def test_the_features_stand_for_their_index(cli: Cli, made: Path, photos: Path, tmp_path: Path) -> None:
    image = next(path for path in sorted(photos.rglob("*")) if path.is_file())
    for folder in (made, made.parent):
        code, out, err = cli("search", folder, image, "--k", 1, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["queries"][0]["results"][0]["image"] == str(image)
    page = tmp_path / "found.html"
    assert cli("search", made, image, "--k", 1, "--sheet", page)[0] == 0
    assert f'<a href="{image.resolve().as_uri()}">' in page.read_text()


def test_table_json_and_sheets(cli: Cli, made: Path, photos: Path, tmp_path: Path) -> None:
    query = photos / "again <&> [bold].png"
    code, out, err = cli("search", made, query, photos / "001.png", "--k", 2, "--sheet", tmp_path / "s.png")
    assert code == 0, err
    assert "again <&> [bold].png" in out
    assert "004.png" in out
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.width > 3 * 160
        assert sheet.height > 2 * 160
    code, out, err = cli("search", made, query, "--json", "--sheet", tmp_path / "s.html")
    assert code == 0, err
    (one,) = json.loads(out)["queries"]
    assert one["image"] == str(query)
    assert [r["rank"] for r in one["results"]] == list(range(1, 11))
    assert {Path(r["image"]).name for r in one["results"][:2]} == {"004.png", query.name}
    page = ElementTree.fromstring((tmp_path / "s.html").read_text().removeprefix("<!DOCTYPE html>\n"))
    sources = [image.attrib["src"] for image in page.iter("img")]
    assert len(sources) == 11
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)


def test_the_sheet_shows_images_that_were_moved(made: Path, photos: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(photos, tmp_path / "moved")
    search(made, moved / "001.png", sheet=tmp_path / "s.html", data=moved)
    assert (tmp_path / "s.html").read_text().count("<img") == 11


def test_a_bad_image_of_a_folder_is_left_out(made: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "queries", tiny_images(3))
    (tmp_path / "queries" / "001.png").write_bytes(b"not an image")
    with pytest.warns(UserWarning, match=r"1 of 3 images .* left out"):
        found = search(made, tmp_path / "queries", k=1)
    assert [Path(one.query).name for one in found] == ["000.png", "002.png"]


def test_mistakes_of_search(cli: Cli, made: Path, photos: Path, run: Path, recipe: Path, tmp_path: Path) -> None:
    image = photos / "001.png"
    assert_one_line(cli("search", tmp_path, image), "no index", "carp index")
    assert_one_line(cli("search", tmp_path / "typo", image), "typo does not exist", "Check the path", "carp index")
    assert_one_line(cli("search", made, image, "--k", 33), "from 1 to 32", "33")
    assert_one_line(cli("search", made, image, "--k", "ten"), "'--k'", "a valid integer", "'ten'")
    assert_one_line(cli("search", made, image, "k=5"), "'k' is an option", "--k 5")
    assert_one_line(cli("search", made, image, "q=5.png"), "q=5.png", "no such file")
    assert_one_line(cli("search", made, tmp_path / "none.png"), "none.png", "no such file")
    (tmp_path / "bad.png").write_bytes(b"not an image")
    assert_one_line(cli("search", made, tmp_path / "bad.png"), "bad.png", "not an image")
    assert_one_line(cli("search", made, image, "--sheet", tmp_path / "s.gif"), ".png or .html", "s.gif")
    assert_one_line(cli("index", photos), "no features", "carp embed")
    assert_one_line(cli("index", made.parent, "--kind", "exakt"), "exakt", "Did you mean 'exact'")
    carp.train(photos, tmp_path / "other", recipe, quiet=True)
    assert_one_line(cli("search", made, image, "--model", tmp_path / "other"), "is not the model", run.name)


def test_queries_of_a_wrong_type(made: Path, photos: Path) -> None:
    image = photos / "001.png"
    for k in ("5", 2.5, 0):
        with pytest.raises(ConfigError, match=f"k must be from 1 to 32.*received {k!r}"):
            search(made, image, k=k)  # type: ignore[arg-type]
    assert len(search(made, image, k=np.int64(2))[0].matches) == 2  # type: ignore[arg-type]
    pixels = np.zeros((8, 8, 3), np.uint8)
    for images, name in [(5, "int"), (None, "NoneType"), ([image, 5], "int"), ([pixels], "ndarray")]:
        with pytest.raises(DataError, match=f"path of an image or a folder, received {name}"):
            search(made, images)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="empty list"):
        search(made, [])


def test_features_of_a_ranked_protocol_cannot_be_searched(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    assert cli("eval", "retrieval", run, "--data", labelled, "--out", tmp_path, "--branch", "teacher")[0] == 0
    (features,) = (tmp_path / "features").iterdir()
    assert cli("index", features)[0] == 0
    image = next(labelled.rglob("*.png"))
    for words in ([], ["--model", run]):
        assert_one_line(cli("search", features, image, *words), str(features), "one size", "carp embed")


def test_features_of_an_older_transform_are_searched_with_a_warning(photos: Path, run: Path, tmp_path: Path) -> None:
    carp.embed(run, photos, tmp_path / "features")
    manifest = tmp_path / "features" / "store.json"
    read = json.loads(manifest.read_text())
    del read["origin"]["transform"]["transform"], read["sha256"], read["files"]
    manifest.write_text(json.dumps(read))
    folder = index(tmp_path / "features").folder
    with pytest.warns(UserWarning, match="another version of the image transform.*Embed and index again"):
        assert search(folder, photos / "001.png", k=1)[0].matches[0].place == str(photos / "001.png")


def test_a_model_that_moved_is_asked_for(cli: Cli, photos: Path, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    carp.embed(tmp_path / "run", photos, tmp_path / "features")
    made = index(tmp_path / "features").folder
    (tmp_path / "run").rename(tmp_path / "moved")
    assert_one_line(cli("search", made, photos / "001.png"), "no longer at", "--model")
    assert len(search(made, photos / "001.png", model=tmp_path / "moved")) == 1


def test_duplicates_with_a_threshold(photos: Path, run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in photos.iterdir()}
    found = duplicates(photos, run, out=tmp_path, threshold=1.0)
    (group,) = found.groups
    assert {Path(m.place).name for m in group.members} == {"004.png", "again <&> [bold].png"}
    assert all(m.identical for m in group.members)
    assert {path.name: path.read_bytes() for path in photos.iterdir()} == before, "it must touch nothing"


def test_duplicates_page_and_list(cli: Cli, photos: Path, run: Path, tmp_path: Path) -> None:
    encoder = carp.load(run)
    a, b = encoder.embed([photos / "007.png", photos / "twice.png"])
    roots = [np.sign(x) * np.sqrt(np.abs(x)) for x in (a, b)]
    similarity = float(roots[0] @ roots[1] / np.linalg.norm(roots[0]) / np.linalg.norm(roots[1]))
    words = ("duplicates", photos, "--model", run, "--out", tmp_path / "out", "--threshold", similarity - 1e-4)
    code, out, err = cli(*words)
    assert code == 0, err
    assert "nothing was deleted" in out
    written = json.loads((tmp_path / "out" / "duplicates.json").read_text())
    assert written["images"] == 32
    of_twice = next(group for group in written["groups"] if any("twice" in m["image"] for m in group))
    assert Path(of_twice[0]["image"]).name == "twice.png", "the larger one is to be kept"
    assert [m["keep"] for m in of_twice] == [True] + [False] * (len(of_twice) - 1)
    page = ElementTree.fromstring((tmp_path / "out" / "duplicates.html").read_text().removeprefix("<!DOCTYPE html>\n"))
    assert len(list(page.iter("img"))) == sum(len(group) for group in written["groups"])
    assert all(image.attrib["src"].startswith("data:") for image in page.iter("img"))
    assert cli("duplicates", photos, "--features", tmp_path / "out" / "features", "--out", tmp_path / "b")[0] == 0


def test_no_copies(cli: Cli, run: Path, flat: Path, tmp_path: Path) -> None:
    code, out, _ = cli("duplicates", flat, "--model", run, "--out", tmp_path, "--threshold", 1)
    assert code == 0
    assert "no copies among 64 images" in out
    assert json.loads((tmp_path / "duplicates.json").read_text())["groups"] == []


def test_mistakes_of_duplicates(cli: Cli, photos: Path, flat: Path, run: Path, tmp_path: Path) -> None:
    assert_one_line(cli("duplicates", photos, "--model", run, "--threshold", 95, "--out", tmp_path), "0 to 1", "95")
    assert_one_line(cli("duplicates", photos, "--model", run, "--threshold", "high", "--out", tmp_path), "high")
    assert_one_line(cli("duplicates", tmp_path / "none", "--model", run, "--out", tmp_path), "none")
    carp.embed(run, flat, tmp_path / "features")
    assert_one_line(cli("duplicates", photos, "--features", tmp_path / "features", "--out", tmp_path), "not of")
    (tmp_path / "file").write_text("")
    assert_one_line(cli("duplicates", photos, "--model", run, "--out", tmp_path / "file"), "is a file")
