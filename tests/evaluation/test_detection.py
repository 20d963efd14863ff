"""Detection end to end on twelve generated images; stopped, killed and continued."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from carp.encoders.exports import ExportableEncoder
from carp.errors import DataError, Interrupted, ModelError, NonFiniteError
from carp.evaluation.detection.trial import Schedule
from carp.evaluation.detection.trials import detection
from carp.evaluation.detection.voc import Annotated, Scenes, read_voc
from carp.evaluation.result import Result
from carp.runs.checkpoint import list_checkpoints
from tests.evaluation.voc_tree import CLASSES, write_voc

TRAIN, TEST = ("2007:trainval", "2012:trainval"), ("2007:test",)
TINY: dict[str, Any] = {
    "iterations": 6,
    "batch_size": 2,
    "trials": 1,
    "warmup": 2,
    "sizes": [48, 64],
    "max_size": 96,
    "test_size": 64,
    "anchor_sizes": [16, 32],
    "workers": 0,
}


def narrow(name: str = "resnet18", **options: Any) -> ExportableEncoder:
    torch.manual_seed(0)
    module = timm.create_model(name, num_classes=0, **options).eval()
    return ExportableEncoder(module, 64, 64, name, options, {})


@pytest.fixture(scope="module")
def encoder() -> ExportableEncoder:
    return narrow(channels=[8, 8, 16, 16])


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voc(tmp_path_factory.mktemp("voc"))


Parts = tuple[list[Annotated], list[Annotated]]


@pytest.fixture(scope="module")
def parts(voc: Path) -> Parts:
    return read_voc(voc, TRAIN), read_voc(voc, TEST)


@pytest.fixture(scope="module")
def whole(encoder: ExportableEncoder, parts: Parts) -> Result:
    """Never interrupted."""
    return detection(encoder, *parts, **TINY)


def test_the_result(whole: Result) -> None:
    assert list(whole.values) == ["ap", "ap50", "ap75", "ap_area", "ap50_area", "ap75_area"]
    assert all(0 <= value <= 1 for value in whole.values.values())
    assert whole.settings["iterations"] == 6
    (trial,) = whole.details["trials"]
    known = [trial["ap_by_class_and_overlap"][whole.details["classes"].index(name)] for name in CLASSES]
    assert any(row is not None for row in known)
    assert len(trial["ap_by_class_and_overlap"]) == 20


def at_iteration(wanted: int, act: Callable[[], None]) -> Callable[[str], Callable[[int, int], None]]:
    """Progress that acts once."""

    def begin(what: str) -> Callable[[int, int], None]:
        return lambda done, _all: act() if "training" in what and done == wanted else None

    return begin


def test_stopped_by_a_signal_and_continued(
    encoder: ExportableEncoder, parts: Parts, whole: Result, tmp_path: Path
) -> None:
    stop = at_iteration(2, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted, match="SIGTERM after iteration 3 of 6, trial 1; everything is saved"):
        detection(encoder, *parts, **TINY, state=tmp_path, progress=stop)
    seen: list[int] = []
    again = detection(
        encoder, *parts, **TINY, state=tmp_path, progress=lambda what: lambda done, _all: seen.append(done)
    )
    assert again.details == whole.details
    assert again.values == whole.values
    assert seen == [4, 5, 6, 1, 2, 3, 4]  # three iterations, four test images
    (folder,) = tmp_path.iterdir()
    assert not list_checkpoints(folder / "trial-0")
    more = detection(encoder, *parts, **{**TINY, "trials": 2, "iterations": 6}, state=tmp_path)
    assert more.details["trials"][0] == whole.details["trials"][0]  # found, not made again
    assert more.spread.keys() == more.values.keys()


def test_killed_and_continued(encoder: ExportableEncoder, parts: Parts, whole: Result, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # the parent's threads are not in the child
        kill = at_iteration(4, lambda: os.kill(os.getpid(), signal.SIGKILL))
        detection(encoder, *parts, **TINY, state=tmp_path, save_seconds=0, progress=kill)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (saved,) = tmp_path.glob("*/trial-0/step-*")
    assert saved.name == "step-00000004"
    again = detection(encoder, *parts, **TINY, state=tmp_path)
    assert again.details == whole.details


@pytest.mark.slow
def test_it_learns(encoder: ExportableEncoder, voc: Path) -> None:
    """Coloured rectangles, tested on the images it was trained on."""
    images = read_voc(voc, TRAIN)
    settings = {**TINY, "iterations": 400, "batch_size": 4, "lr": 0.02, "sizes": [64]}
    found = detection(encoder, images, images, **settings)
    assert found.values["ap50"] > 0.5


def test_voc_is_read_as_it_is(voc: Path, tmp_path: Path) -> None:
    images = read_voc(voc, TRAIN)
    assert len(images) == 8
    assert read_voc(voc / "VOCdevkit", TEST)[0].path.name == "200000.jpg"
    assert images[3].truth.scores.tolist() == [0, 1]  # the second is difficult
    home = tmp_path / "VOC2007"
    for name in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (home / name).mkdir(parents=True)
    (home / "ImageSets/Main/train.txt").write_text("a  1\n")
    box = "<bndbox><xmax>{}</xmax><xmin>1</xmin><ymin>2</ymin><ymax>4</ymax></bndbox>"
    annotation = home / "Annotations" / "a.xml"
    annotation.write_text(f"<annotation><object><name>dog</name>{box.format(3)}</object></annotation>")
    (read,) = read_voc(tmp_path, ["2007:train"])
    assert read.truth.corners.tolist() == [[0, 1, 3, 4]]  # counted from 1, both ends inside
    annotation.write_text(f"<annotation><object><name>cat</name>{box.format(0)}</object></annotation>")
    with pytest.raises(DataError, match=r"a\.xml has an empty box"):
        read_voc(tmp_path, ["2007:train"])
    annotation.write_text(f"<annotation><object><name>unicorn</name>{box.format(3)}</object></annotation>")
    with pytest.raises(DataError, match="has an object 'unicorn', which is not a class of VOC"):
        read_voc(tmp_path, ["2007:train"])
    with pytest.raises(DataError, match=r"cannot read .*VOC2012.*trainval\.txt.*No such file.*--test 2007:val"):
        read_voc(tmp_path, ["2012:trainval"])


def test_boxes_follow_the_pixels(parts: Parts) -> None:
    """At every scale, flipped or not, the colour inside a box is that of its class."""
    scenes = Scenes(parts[0], sizes=[48, 96], max_size=200, seed=1, trial=0)
    shapes = set()
    for batch in scenes.batches(0, 12, batch_size=4, workers=0):
        for scene in batch:
            shapes.add(min(scene.pixels.shape[1:]))
            left, top, right, bottom = (round(float(side)) for side in scene.corners[-1])  # the last one lies above
            inside = scene.pixels[:, top + 3 : bottom - 3, left + 3 : right - 3].float().mean(dim=(1, 2))
            channel = {1: 0, 12: 1, 20: 2}[int(scene.classes[-1])]
            assert int(inside.argmax()) == channel
            assert inside[channel] > 200
    assert shapes == {48, 96}


def test_views_depend_on_their_coordinates_alone(parts: Parts) -> None:
    def made(trial: int, first: int, workers: int) -> list[np.ndarray]:
        scenes = Scenes(parts[0], sizes=[48, 64], max_size=200, seed=1, trial=trial)
        return [s.pixels.numpy() for batch in scenes.batches(first, 5, batch_size=3, workers=workers) for s in batch]

    whole, tail, others = made(0, 0, 0), made(0, 3, 2), made(1, 0, 0)
    assert all(np.array_equal(a, b) for a, b in zip(whole[9:], tail, strict=True))
    assert not all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(whole, others, strict=True))


def test_an_image_that_cannot_be_read(encoder: ExportableEncoder, tmp_path: Path) -> None:
    root = write_voc(tmp_path)
    broken = next((root / "VOCdevkit" / "VOC2012" / "JPEGImages").iterdir())
    broken.write_bytes(b"nothing")
    with pytest.raises(DataError, match=f"cannot read the image {broken}"):
        detection(encoder, read_voc(root, ["2012:trainval"]), read_voc(root, TEST), **{**TINY, "workers": 1})


def test_the_schedule_is_mocos() -> None:
    paper = Schedule(24_000, 16, 0.02, 0.9, 1e-4, (0.75, 11 / 12), 100)
    expected = {0: 0.02e-3, 100: 0.02, 17_999: 0.02, 18_000: 0.002, 21_999: 0.002, 22_000: 0.0002, 23_999: 0.0002}
    for step, lr in expected.items():
        assert paper.lr_at(step) == pytest.approx(lr), step


def test_mistakes(encoder: ExportableEncoder, parts: Parts) -> None:
    vit = narrow("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=1, num_heads=2)
    with pytest.raises(ModelError, match="four stages: vit_tiny_patch16_224 has no conv1"):
        detection(vit, *parts, **TINY)
    with pytest.raises(NonFiniteError, match=r"trial 1, iteration \d is (nan|inf)\..* lr "):
        detection(encoder, *parts, **{**TINY, "lr": 1e9, "warmup": 0})
    with pytest.raises(DataError, match="none of the training images has a box"):
        detection(encoder, [], parts[1], **TINY)


def test_the_encoder_is_not_changed(parts: Parts) -> None:
    mine = narrow(channels=[8, 8, 16, 16])
    before = {name: tensor.clone() for name, tensor in mine.module.state_dict().items()}
    detection(mine, *parts, **{**TINY, "iterations": 1})
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.module.state_dict().items())
