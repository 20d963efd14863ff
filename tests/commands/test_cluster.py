"""`carp cluster` and `carp label`: from images to tables and pages, and every mistake in one line."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import carp
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import write_images

pytest.importorskip("faiss")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 images of 32 pixels in three colours, named after them; a sub-folder per colour."""
    folder, generator = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for place, name in enumerate(("red", "green", "blue")):
        pixels = generator.integers(0, 60, (30, 32, 32, 3), dtype=np.uint8)
        pixels[..., place] += 180
        (folder / name).mkdir()
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(folder / name / f"{name}_{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def features(colours: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("colours") / "features"
    carp.embed(run, colours, out)
    return out


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_a_page_and_folders(cli: Cli, colours: Path, features: Path, tmp_path: Path) -> None:
    code, out, err = cli("cluster", colours, "--features", features, "--clusters", 3, "--out", tmp_path, "--folders")
    assert code == 0, err
    assert "3 clusters of 90 images" in out
    rows = rows_of(tmp_path / "clusters.csv")
    assert [row["image"] for row in rows] == sorted(map(str, colours.rglob("*.png")))
    assert {row["cluster"] for row in rows} == {"1", "2", "3"}
    assert all(0 <= float(row["certainty"]) <= 1 for row in rows)
    assert {row["label"] for row in rows} == {"red", "green", "blue"}
    for cluster in "123":
        inside = [row for row in rows if row["cluster"] == cluster]
        assert len({row["name"] for row in inside}) == 1
        links = [*(tmp_path / "folders").glob(f"{cluster}_*/*"), *(tmp_path / "folders").glob(f"cluster_{cluster}/*")]
        assert {str(link.resolve()) for link in links} == {row["image"] for row in inside}
    summary = json.loads((tmp_path / "clusters.json").read_text())
    assert sum(each["images"] for each in summary["clusters"]) == summary["images"] == 90
    page = (tmp_path / "clusters.html").read_text()
    assert page.count("<article") == 3
    assert "data:image/jpeg;base64," in page
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(tmp_path / "clusters.parquet").to_pydict()
    assert table["image"] == [row["image"] for row in rows]
    assert [str(value) for value in table["cluster"]] == [row["cluster"] for row in rows]


def test_auto_says_how_it_chose(colours: Path, features: Path, tmp_path: Path) -> None:
    found = carp.cluster(colours, features=features, out=tmp_path)
    assert "silhouette" in found.method
    assert len(found.names) == len(found.sizes) == int(found.clusters.max()) + 1
    assert "silhouette" in json.loads((tmp_path / "clusters.json").read_text())
    again = carp.cluster(colours, features=features, out=tmp_path)
    np.testing.assert_array_equal(again.clusters, found.clusters)


def test_the_prototypes_of_a_run_are_centres(cli: Cli, colours: Path, run: Path, tmp_path: Path) -> None:
    code, out, err = cli("cluster", colours, "--model", run, "--clusters", "prototypes", "--out", tmp_path)
    assert code == 0, err
    assert "prototypes" in out
    encoder = carp.load(run, layer="projector")
    z = encoder.embed(str(colours))
    cosine = (z / np.linalg.norm(z, axis=1, keepdims=True)) @ encoder.prototypes.T
    rows = rows_of(tmp_path / "clusters.csv")
    np.testing.assert_allclose([float(row["similarity"]) for row in rows], cosine.max(axis=1), atol=2e-4)


def test_mistakes_of_cluster(cli: Cli, colours: Path, features: Path, run: Path, tmp_path: Path) -> None:
    words = ("cluster", colours, "--features", features, "--out", tmp_path)
    assert_one_line(cli(*words, "--clusters", "many"), "auto or prototypes", "many")
    assert_one_line(cli(*words, "--clusters", 1), "at least 2", "1")
    assert_one_line(cli(*words, "--clusters", 90), "90", "Lower --clusters")
    assert_one_line(cli(*words, "--clusters", "prototypes"), "--model RUN")
    assert_one_line(cli("cluster", tmp_path / "none", "--model", run), "none")
    assert_one_line(cli("cluster", colours, "--model", tmp_path / "none"), "none")
    data = "embedded:shapes-test"
    assert_one_line(
        cli("cluster", data, "--model", run, "--clusters", 3, "--folders", "--out", tmp_path / "e"), "not a file"
    )


def few(colours: Path, path: Path, count: int, *, relative: bool = False) -> Path:
    files = [file for name in ("red", "green", "blue") for file in sorted((colours / name).iterdir())[:count]]
    lines = [f"{file.relative_to(colours) if relative else file},{file.parent.name}" for file in files]
    path.write_text("image,label\n" + "\n".join(lines) + "\n")
    return path


def test_labels_of_a_few_become_labels_of_all(cli: Cli, colours: Path, features: Path, tmp_path: Path) -> None:
    labels = few(colours, tmp_path / "few.csv", 8)
    out = tmp_path / "out"
    code, printed, err = cli("label", colours, "--labels", labels, "--features", features, "--out", out, "--suggest", 5)
    assert code == 0, err
    assert "24 labels given" in printed
    rows = rows_of(out / "labels.csv")
    assert len(rows) == 90
    truth = [Path(row["image"]).parent.name for row in rows]
    assert np.mean([row["label"] == name for row, name in zip(rows, truth, strict=True)]) > 0.8
    assert sum(row["given"] == "yes" for row in rows) == 24
    given = {row["image"] for row in rows if row["given"]}
    suggested = [row["image"] for row in rows_of(out / "suggestions.csv")]
    assert len(suggested) == 5
    assert not given & set(suggested)
    assert "Label these next" in (out / "labels.html").read_text()


def test_names_within_the_data_and_other_images(colours: Path, features: Path, run: Path, tmp_path: Path) -> None:
    inside = carp.label(
        colours, few(colours, tmp_path / "few.csv", 2, relative=True), features=features, out=tmp_path / "a"
    )
    assert inside.given == 6
    assert inside.accuracy is None
    assert "not calibrated" in inside.method
    elsewhere = tmp_path / "labelled"
    for name in ("red", "green", "blue"):
        (elsewhere / name).mkdir(parents=True)
        for number in range(2):
            shutil.copy(colours / name / f"{name}_{number:02d}.png", elsewhere / name / f"{number}.png")
    other = carp.label(colours, elsewhere, features=features, out=tmp_path / "b")
    assert other.given == 6
    inside_rows = [place for place, row in enumerate(inside.places) if not row.endswith(("_00.png", "_01.png"))]
    assert [inside.labels[row] for row in inside_rows] == [other.labels[row] for row in inside_rows]


def test_a_wrong_label_is_listed(colours: Path, features: Path, tmp_path: Path) -> None:
    labels = few(colours, tmp_path / "few.csv", 15)
    lines = labels.read_text().splitlines()
    lines[3] = lines[3].replace(",red", ",blue")
    labels.write_text("\n".join(lines) + "\n")
    found = carp.label(colours, labels, features=features, out=tmp_path / "out")
    assert lines[3].partition(",")[0] in found.doubtful[:3]


def test_mistakes_of_label(cli: Cli, colours: Path, features: Path, tmp_path: Path) -> None:
    words = ("label", colours, "--features", features, "--out", tmp_path / "out", "--labels")
    (tmp_path / "one.csv").write_text("image,label\nred/red_00.png,red\n")
    assert_one_line(cli(*words, tmp_path / "one.csv"), "only one class", "at least two")
    (tmp_path / "none.csv").write_text("image,label\nnowhere.png,red\nred/red_00.png,blue\n")
    assert_one_line(cli(*words, tmp_path / "none.csv"), "nowhere.png", "Correct the names")
    (tmp_path / "twice.csv").write_text("image,label\nred/red_00.png,red\nred/red_00.png,blue\n")
    assert_one_line(cli(*words, tmp_path / "twice.csv"), "red_00.png", "more than once")
    flat = write_images(tmp_path / "flat", np.zeros((2, 32, 32, 3), np.uint8))
    assert_one_line(cli(*words, flat), "no labels")
    assert_one_line(cli(*words, tmp_path / "missing.csv"), "missing.csv")
