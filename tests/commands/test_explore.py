"""`carp explore`: mistakes are one line, and Ctrl-C ends it."""

import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import carp
from tests.commands.conftest import Cli, assert_one_line

pytest.importorskip("starlette")
pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def features(run: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explored") / "features"
    carp.embed(run, labelled, folder)
    return folder


def test_what_cannot_be_explored(
    cli: Cli, run: Path, flat: Path, labelled: Path, features: Path, tmp_path: Path
) -> None:
    none, vectors, words = tmp_path / "none", tmp_path / "vectors.npy", tmp_path / "words.npy"
    np.save(vectors, np.ones((3, 4), dtype=np.float32))
    words.write_text("words")
    (tmp_path / "file").write_text("")
    assert_one_line(cli("explore", none), f"there is no folder {none}", "carp embed")
    assert_one_line(cli("explore", flat), "neither features nor a run", "carp embed")
    assert_one_line(cli("explore", run), "--data")
    assert_one_line(cli("explore", f"{run}@1"), "--data")
    assert_one_line(cli("explore", features, "--data", none), f"there is no folder {none}")
    assert_one_line(cli("explore", features, "--data", flat), f"contains the features of {labelled}", str(flat))
    assert_one_line(cli("explore", vectors), "--data")
    assert_one_line(cli("explore", vectors, "--data", flat), "3 vectors", "64 images")
    assert_one_line(cli("explore", words, "--data", flat), "cannot read", "numpy.save")
    assert_one_line(cli("explore", features, features, "--data", labelled), "more than once")
    assert_one_line(cli("explore", *[features] * 5), "received 5")
    assert_one_line(cli("explore", features, "--port", 70000), "port")
    assert_one_line(cli("explore", features, "--out", tmp_path / "file"), "is a file")
    assert_one_line(cli("explore", features, "--model", none), str(none))


def test_features_of_other_images_cannot_be_compared(
    cli: Cli, run: Path, flat: Path, features: Path, tmp_path: Path
) -> None:
    carp.embed(run, flat, tmp_path / "other")
    assert_one_line(cli("explore", features, tmp_path / "other"), "different images")


def test_images_that_were_moved(cli: Cli, run: Path, flat: Path, tmp_path: Path) -> None:
    images = shutil.copytree(flat, tmp_path / "images")
    carp.embed(run, images, tmp_path / "features")
    images.rename(tmp_path / "moved")
    assert_one_line(cli("explore", tmp_path / "features"), "cannot be shown", "--data")


def test_ctrl_c_ends_the_command_without_an_error(cli: Cli, features: Path) -> None:
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    code, out, err = cli("explore", features)
    assert code == 0, err
    assert out.startswith("explorer: http://127.0.0.1:")
    assert out.count("\n") == 1
    assert "error" not in err


def test_the_run_behind_features_is_found_and_embeds_an_image(run: Path, labelled: Path, features: Path) -> None:
    """Also the prototypes of the run, which belong to stored features too."""
    from carp.console.progress import Display
    from carp.features.feature_options import FeatureOptions
    from carp.web.answers import Answers
    from carp.web.open_spaces import Opening, open_spaces

    how = Opening(labelled, None, "teacher", FeatureOptions(), Display(quiet=True))
    images, spaces = open_spaces([features, run], how)
    assert [space.name for space in spaces] == ["features", "run"]
    assert all(space.has_prototypes for space in spaces)
    answers = Answers(images, spaces, None)
    found = answers.search(Path(images.place(9)).read_bytes(), "that was dropped")
    for shown in found["lists"]:
        assert shown["images"][0]["row"] == 9
        assert shown["images"][0]["value"] == pytest.approx(1, abs=1e-3)
    with pytest.raises(carp.CarpError, match="cannot read the image that was dropped: it is not an image"):
        answers.search(b"damaged", "that was dropped")
    seen = spaces[0].prototypes()
    cards = answers.groups.prototype_cards(seen)
    assert cards["count"] == 64
    assert cards["compared"] == 66
    number = cards["most"][0]["number"]
    listed = answers.groups.prototype(seen, number, 0)
    assert [image["row"] for image in listed["images"]][:8] == [image["row"] for image in cards["most"][0]["images"]]
    assert answers.groups.comparison().finished.wait(60)
    assert answers.groups.comparison().value.mean == 1
    answers.background.stop()
