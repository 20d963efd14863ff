"""From images to an encoder, all the way."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import carp
from carp.errors import CheckpointError, DataError
from carp.training.course import Course
from carp.training.loop import Training
from tests.commands.conftest import Cli
from tests.helpers import TINY, assert_same_bits, final_tensors, steps_of, tiny_images, write_images

PNG = b"\x89PNG\r\n\x1a\n"


def metrics(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_one_epoch_on_the_embedded_images_with_validation(recipe: Path, tmp_path: Path) -> None:
    run = carp.train(
        "embedded:shapes",
        tmp_path / "run",
        recipe,
        quiet=True,
        batch_size=256,
        validation="embedded:shapes-test",
        stem_stride=4,
    )
    assert run.folder == tmp_path / "run"
    lines = metrics(run.folder)
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == list(range(steps_of(run.folder)[-1]))
    assert all(np.isfinite(line["loss"]) for line in losses)
    assert losses[0]["lr"] > losses[-1]["lr"]
    (knn,) = [line for line in lines if "knn_student" in line]
    assert knn["epoch"] == 1
    assert 0 <= knn["knn_student"] <= 1
    assert 0 <= knn["knn_teacher"] <= 1
    assert (run.folder / "plots.png").read_bytes().startswith(PNG)
    with Image.open(run.folder / "plots.png") as plot:
        assert min(plot.size) > 200
    info = json.loads((run.folder / "run.json").read_text())
    assert info["data"]["name"] == "embedded:shapes"
    assert {"torch", "numpy", "python"} <= info["versions"].keys()
    assert info["seed"] == TINY["seed"]


def test_raw_pixels_and_the_untrained_encoder_are_measured_once_shown_and_drawn(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path
) -> None:
    queries = write_images(tmp_path / "queries", tiny_images(30, seed=8), classes=3)
    out = tmp_path / "run"
    words = ["train", labelled, "--val", queries, "--recipe", recipe, "--out", out, "epochs=2"]
    code, _, err = cli(*words)
    assert code == 0, err
    lines = metrics(out)
    (line,) = [line for line in lines if "knn_untrained" in line]
    assert line == lines[0]
    assert (line["step"], line["epoch"]) == (0, 0)
    for name, branch in (("knn_raw_pixels", "raw pixels"), ("knn_untrained", "untrained")):
        expected = carp.evaluate("knn", out, labelled, test=queries, branch=branch, k=20, device="cpu")
        assert line[name] == expected.values["top1@20"]
    shown = f"raw pixels {line['knn_raw_pixels']:.1%}, untrained {line['knn_untrained']:.1%}"
    before, after = (text for text in err.splitlines() if shown in text)
    assert "before training" in before
    student = [line for line in lines if "knn_student" in line][-1]["knn_student"]
    assert f"k-NN student {student:.1%}" in after


def test_a_run_that_an_older_version_began_is_continued(
    labelled: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 3, "validation": str(labelled), "checkpoint_steps": 1}
    unbroken = carp.train(labelled, tmp_path / "unbroken", recipe, quiet=True, **settings)

    class StoppedError(Exception):
        pass

    def stop(_: Training, step: int, *__: object) -> None:
        if step == 6:
            raise StoppedError

    with monkeypatch.context() as older:  # it saved nothing but this, and knew of no baselines
        older.setattr(Course, "state", lambda self: {"collapsed_in_a_row": self.collapsed_in_a_row})
        older.setattr(Training, "_measure_baselines", lambda *_: None)
        older.setattr(Training, "_diagnose", stop)
        with pytest.raises(StoppedError):
            carp.train(labelled, tmp_path / "run", recipe, quiet=True, health_steps=1, **settings)
    assert steps_of(tmp_path / "run")[-1] == 6
    run = carp.train(labelled, tmp_path / "run", recipe, quiet=True, health_steps=1, **settings)
    assert_same_bits(final_tensors(run.folder), final_tensors(unbroken.folder))
    (ours,), (theirs,) = (
        [(line["knn_raw_pixels"], line["knn_untrained"]) for line in metrics(folder) if "knn_untrained" in line]
        for folder in (run.folder, unbroken.folder)
    )
    assert ours == theirs  # the untrained encoder is built again from the seed


def test_all_ways_to_give_images_give_the_same_vectors(run: Path, flat: Path) -> None:
    encoder = carp.load(run, device="cpu")
    arrays = tiny_images()
    expected = encoder.embed(arrays)
    assert expected.dtype == np.float32
    assert expected.shape == (64, TINY["encoder_options"]["channels"][-1])
    paths = sorted(flat.glob("*.png"))
    for images in (flat, str(flat), paths, [str(p) for p in paths], [Image.open(p) for p in paths], list(arrays)):
        np.testing.assert_array_equal(encoder.embed(images), expected)
    for single in (paths[0], str(paths[0]), Image.open(paths[0]), arrays[0]):
        np.testing.assert_allclose(encoder.embed(single), expected[:1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoder.embed(arrays, batch_size=7), expected, rtol=1e-4, atol=1e-5)


def test_images_that_differ_have_vectors_that_differ(run: Path) -> None:
    vectors = carp.load(run, device="cpu").embed(tiny_images())
    assert len(np.unique(vectors, axis=0)) == 64


def test_images_of_any_size_and_mode_can_be_embedded(run: Path) -> None:
    encoder = carp.load(run, device="cpu")
    picture = Image.fromarray(tiny_images(1, 100)[0])
    images = [picture, picture.convert("L"), picture.convert("RGBA"), picture.convert("P"), picture.resize((31, 200))]
    assert encoder.embed(images).shape[0] == 5


def test_student_and_teacher_differ_and_siamese_twins_do_not(run: Path, recipe: Path, tmp_path: Path) -> None:
    student, teacher = (carp.load(run, branch, device="cpu").embed(tiny_images()) for branch in ("student", "teacher"))
    assert np.abs(student - teacher).max() > 0
    np.testing.assert_array_equal(carp.load(run, device="cpu").embed(tiny_images()), teacher)
    twins = carp.train(tiny_images(), tmp_path / "twins", recipe, quiet=True, teacher_momentum=0)
    student, teacher = (carp.load(twins.folder, b, device="cpu").embed(tiny_images()) for b in ("student", "teacher"))
    np.testing.assert_array_equal(student, teacher)
    assert not any(name.startswith("model.teacher.") for name in final_tensors(twins.folder))


def test_mistakes_in_embedding_say_what_was_received(run: Path, tmp_path: Path) -> None:
    encoder = carp.load(run, device="cpu")
    for images, words in [
        ([], "at least one image"),
        (np.zeros((2, 8, 8, 3), dtype=np.float32), r"float32 \[2, 8, 8, 3\]"),
        (np.zeros((8, 8), dtype=np.uint8), r"uint8 \[8, 8\]"),
        (tmp_path / "no.png", r"no\.png"),
        ([tmp_path / "no.png"], r"no\.png"),
    ]:
        with pytest.raises(DataError, match=words):
            encoder.embed(images)
    with pytest.raises(CheckpointError, match=r"received 'techer'"):
        carp.load(run, "techer")  # type: ignore[arg-type]


def test_a_run_and_an_encoder_introduce_themselves_in_a_line(run: Path, labelled: Path) -> None:
    assert repr(carp.runs.run_folder.open_run(run)) == f"Run('{run}', resnet18, 2 epochs, 66 images of {labelled})"
    assert repr(carp.load(run, device="cpu")) == "Encoder(ResNet, 16 features, 32 px, cpu)"


def test_evaluate_returns_named_shares(run: Path, labelled: Path) -> None:
    for branch in ("student", "teacher"):
        result = carp.evaluate("knn", run, labelled, test=labelled, branch=branch, k=1, device="cpu")
        # Every image is its own nearest neighbour.
        assert result.values == {"top1@1": 1.0, "mean_per_class@1": 1.0}
    found = [
        carp.evaluate("knn", run, labelled, branch=branch, k=20, device="cpu").values["top1@20"]
        for branch in ("raw pixels", "untrained", "student", "teacher")
    ]
    assert all(0 <= value <= 1 for value in found)
    assert len(set(found)) > 1


def test_a_run_can_be_evaluated_on_an_array_source_of_its_own(run: Path) -> None:
    images, labels = tiny_images(30), np.arange(30) % 3
    source = carp.images.sources.array.ArraySource(images, labels, ("a", "b", "c"))
    result = carp.evaluate("knn", run, source, k=3, device="cpu")
    assert list(result.values) == ["top1@3", "mean_per_class@3"]


def test_tensorboard_gets_the_same_numbers(recipe: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = carp.train(tiny_images(), tmp_path / "run", recipe, quiet=True, tensorboard=True)
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    losses = [(e.step, e.value) for e in events.Scalars("loss")]
    expected = [(line["step"], line["loss"]) for line in metrics(run.folder) if "loss" in line]
    assert [step for step, _ in losses] == [step for step, _ in expected]
    np.testing.assert_allclose([v for _, v in losses], [v for _, v in expected], rtol=1e-6)


def test_without_tensorboard_no_such_folder(run: Path) -> None:
    assert not (run / "tensorboard").exists()


@pytest.mark.parametrize("layout", ["flat", "one folder", "classes", "deep", "mixed"])
def test_folders_of_every_layout_train(recipe: Path, tmp_path: Path, layout: str) -> None:
    data, images = tmp_path / "data", tiny_images()
    if layout in {"flat", "classes"}:
        write_images(data, images, classes=3 if layout == "classes" else 0)
    elif layout == "one folder":
        write_images(data / "only", images)
    elif layout == "deep":
        write_images(data / "a" / "b" / "c", images[:32])
        write_images(data / "d" / "e", images[32:])
    else:
        write_images(data / "a", images[:32])
        write_images(data, images[32:])
    run = carp.train(data, tmp_path / "run", recipe, quiet=True)
    assert steps_of(run.folder)[-1] == 4
    assert run.info["data"]["images"] == 64


def test_a_checkpoint_is_written_at_the_end_whatever_its_interval(recipe: Path, tmp_path: Path) -> None:
    run = carp.train(tiny_images(), tmp_path / "run", recipe, quiet=True, checkpoint_steps=1000)
    assert steps_of(run.folder) == [4]


def test_quiet_shows_nothing(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    carp.train(tiny_images(), tmp_path / "run", recipe, quiet=True)
    assert capfd.readouterr() == ("", "")
