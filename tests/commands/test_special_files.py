"""Pipes, devices and sparse files in the place of images, lists, weights and settings: one line, and nothing waits."""

import json
import os
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path / "pipe.png"


def as_file(pipe: Path, name: str) -> Path:
    """The pipe under a name that says what it should be."""
    return pipe.rename(pipe.with_name(name))


def test_special_files_in_a_list_are_bad_images_with_their_reasons(cli: Cli, tmp_path: Path, pipe: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(8))
    with (images / "sparse.jpg").open("wb") as file:
        file.truncate(40 << 30)
    listed = tmp_path / "list.txt"
    paths = [*sorted(images.iterdir()), pipe, Path("/dev/zero"), images]
    listed.write_text("\n".join(map(str, paths)))
    code, out, err = cli("data", "check", listed, "--json", "device=cpu", "workers=0")
    assert code == 1, err
    reasons = {Path(bad["place"]).name: bad["reason"] for bad in json.loads(out)["broken"]}
    assert reasons.keys() == {"pipe.png", "zero", "images", "sparse.jpg"}
    assert "named pipe" in reasons["pipe.png"]
    assert "device" in reasons["zero"]
    assert "folder" in reasons["images"]
    assert "40.0 GiB" in reasons["sparse.jpg"]


def test_a_folder_that_holds_a_pipe_and_a_sparse_image_trains(cli: Cli, tmp_path: Path, recipe: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(40))
    os.mkfifo(images / "pipe.jpg")
    with (images / "sparse.jpg").open("wb") as file:
        file.truncate(40 << 30)
    code, _, err = cli("train", images, "--recipe", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    assert "40.0 GiB" in err
    assert (tmp_path / "run" / "quarantine.jsonl").read_text().count("\n") == 1


def test_a_pipe_as_a_query_is_one_line(cli: Cli, tmp_path: Path, run: Path, flat: Path, pipe: Path) -> None:
    assert cli("embed", run, "--data", flat, "--out", tmp_path / "features")[0] == 0
    assert cli("index", tmp_path / "features", "--kind", "exact")[0] == 0
    assert_one_line(cli("search", tmp_path / "features", pipe), "named pipe")


@pytest.mark.parametrize("model", ["{pipe}", "dino:{pipe}", "/dev/zero", "dino:/dev/zero"])
def test_a_pipe_or_device_as_weights_is_one_line(cli: Cli, tmp_path: Path, flat: Path, pipe: Path, model: str) -> None:
    name = model.format(pipe=as_file(pipe, "weights.pth"))
    kind = "device" if "/dev" in name else "named pipe"
    assert_one_line(cli("embed", name, "--data", flat, "--out", tmp_path / "features"), kind)
    assert_one_line(cli("weights", name), kind)
    assert_one_line(cli("export", name, "--format", "safetensors", "--out", tmp_path / "x.safetensors"), kind)


@pytest.mark.parametrize("name", ["images.txt", "images.csv", "images.tar", "images.parquet", "images"])
def test_a_pipe_as_data_is_one_line(cli: Cli, tmp_path: Path, pipe: Path, name: str) -> None:
    assert_one_line(cli("train", as_file(pipe, name), "--out", tmp_path / "run"), name)


def test_a_pipe_as_settings_ground_truth_result_or_output_is_one_line(
    cli: Cli, tmp_path: Path, flat: Path, run: Path, pipe: Path
) -> None:
    for name in ("a.yaml", "a.json", "a.pkl", "out.safetensors", "out.pth"):
        os.mkfifo(tmp_path / name)
    assert_one_line(cli("train", flat, "--recipe", tmp_path / "a.yaml", "--out", tmp_path / "run"), "named pipe")
    assert_one_line(cli("table", tmp_path / "a.json"), "a.json")
    truth = ("eval", "retrieval", run, "--data", flat, "--queries", flat, "--out", tmp_path / "out", "--truth")
    assert_one_line(cli(*truth, tmp_path / "a.pkl"), "named pipe")
    assert_one_line(cli(*truth, tmp_path / "a.json"), "named pipe")
    for kind, name in (("safetensors", "out.safetensors"), ("torchvision", "out.pth"), ("detectron2", "out.pth")):
        assert_one_line(cli("export", run, "--format", kind, "--out", tmp_path / name), name)
