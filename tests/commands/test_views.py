"""`carp views` through the command line: the sheet shows what training would see."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carp.commands.views import views
from carp.config import Config
from carp.images.views.photo_views import photo_views
from carp.images.views.view_parameters import view_kinds
from tests.commands.conftest import Cli
from tests.helpers import tiny_images, write_images
from tests.images.pictures import photographs


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", photographs(5, 130, 170))


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.array(image)


def holds(sheet: np.ndarray, part: np.ndarray) -> bool:
    """Whether a picture stands on the sheet, bit by bit."""
    side = len(part)
    rows, columns = np.nonzero((sheet[: 1 - side, : 1 - side] == part[0, 0]).all(axis=2))
    return any(np.array_equal(sheet[y : y + side, x : x + side], part) for y, x in zip(rows, columns, strict=True))


def test_the_sheet_of_a_folder_shows_the_views_that_training_makes(cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "sheet.png"
    settings = ["global_size=150", "local_views=3", "local_size=40", "seed=4", "batch_size=2"]
    code, text, err = cli("views", photos, *settings, "--out", out, "--images", 2, "--draws", 2)
    assert (code, text, err) == (0, f"views: {out}\n", "")
    sheet = pixels_of(out)
    kinds = view_kinds(Config(global_size=150, local_views=3, local_size=40))
    for index in (0, 4):  # two images spread over five
        stored = (photos / f"{index:03d}.png").read_bytes()
        for epoch in (0, 1):
            for view in photo_views(stored, "", kinds, seed=4, epoch=epoch, index=index):
                assert holds(sheet, view.permute(1, 2, 0).numpy())


def test_one_image_alone(cli: Cli, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.png"
    assert cli("views", photos / "002.png", "--out", out, "--draws", 3, "global_size=150")[0] == 0
    (view, _) = photo_views(
        (photos / "002.png").read_bytes(), "", view_kinds(Config(global_size=150)), seed=0, epoch=2, index=0
    )
    assert holds(pixels_of(out), view.permute(1, 2, 0).numpy())


def test_small_images_are_enlarged_and_an_array_will_do(tmp_path: Path) -> None:
    path = views(tiny_images(4), "small-images", out=tmp_path / "small.png", images=9, draws=1, local_views=2)
    height, width, _ = pixels_of(path).shape
    assert width > 3 * 32 * 5
    assert height > 4 * 32 * 5


def test_mistakes_are_one_line(cli: Cli, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (tmp_path / "taken").mkdir()
    for words, said in [
        (["no/such/place"], "no/such/place"),
        ([tmp_path / "bad.jpg"], "cannot read the image"),
        ([photos, "--out", tmp_path / "taken"], "--out"),
        ([photos, "--recipe", "folde"], "Did you mean 'folder'"),
        ([photos, "globalsize=3"], "global_size"),
        ([photos, "max_image_pixels=1000"], "max_image_pixels=1000"),
    ]:
        code, out, err = cli("views", *words, *([] if "--out" in words else ["--out", tmp_path / "x.png"]))
        assert code == 2, err
        assert out == ""
        assert err.startswith("carp: error: ")
        assert err.count("\n") == 1
        assert said in err, err
    assert not (tmp_path / "x.png").exists()


def test_bad_files_are_left_out_and_thin_images_drawn(cli: Cli, photos: Path, tmp_path: Path) -> None:
    (photos / "000.png").write_bytes(b"")
    Image.new("RGB", (900, 2), "red").save(photos / "004.png")
    settings = ["--images", 5, "global_size=72", "batch_size=2"]
    code, _, err = cli("views", photos, "--out", tmp_path / "sheet.png", *settings)
    assert code == 0, err
    assert err == f"warning: cannot read the image {photos / '000.png'}: the file is empty. It is skipped.\n"
    for path in photos.iterdir():
        path.write_bytes(b"")
    code, _, err = cli("views", photos, "--out", tmp_path / "none.png", "batch_size=2")
    assert code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "none.png").exists()
