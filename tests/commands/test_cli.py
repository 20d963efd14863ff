"""Every mistake is one line that says what was received and what to do; no mistake shows a traceback."""

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import carp
from carp.config import Config, list_recipes, parse_overrides, read_recipe, read_yaml, resolve
from carp.model.branch import Branch
from tests.commands.conftest import Cli
from tests.helpers import TINY, steps_of, tiny_images, write_images


def assert_one_line(result: tuple[int, str, str], *words: str) -> None:
    """One line on standard error with these words, nothing on standard output, and a non-zero exit."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("carp: error: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


# Data


def test_a_path_that_does_not_exist(cli: Cli, tmp_path: Path) -> None:
    assert_one_line(cli("train", "no/such/place", "--out", tmp_path / "run"), "no/such/place", "Give a folder")
    assert not (tmp_path / "run").exists()


def test_a_misspelt_embedded_set(cli: Cli, tmp_path: Path) -> None:
    result = cli("train", "embedded:shape", "--out", tmp_path / "run")
    assert_one_line(result, "'shape'", "Did you mean", "shapes")


def test_a_file_in_the_place_of_a_folder(cli: Cli, flat: Path, tmp_path: Path) -> None:
    for name, words in [
        ("image.PNG", ["one image", f"the folder that holds the images, e.g. {tmp_path}"]),
        ("images.zip", ["an archive", "unpack it"]),
        ("notes.odt", ["not a folder", "give a folder of images"]),
    ]:
        (tmp_path / name).write_bytes(b"")
        result = cli("train", tmp_path / name, "--out", tmp_path / "run")
        assert_one_line(result, f"{tmp_path / name} is a file, ", *words)


def test_an_empty_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = cli("train", tmp_path / "empty", "--out", tmp_path / "run")
    assert_one_line(result, "no images", str(tmp_path / "empty"), ".png", "Give")


def test_a_folder_without_images(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    (tmp_path / "texts" / ".hidden.png").write_text("hidden")
    result = cli("train", tmp_path / "texts", "--out", tmp_path / "run")
    assert_one_line(result, "no images", str(tmp_path / "texts"), "Give")


PHOTOGRAPHS = ["global_size=72", "batch_size=64", "workers=0"]  # with worker processes: tests/faults/test_bad_images.py


@pytest.mark.parametrize("settings", [[], PHOTOGRAPHS], ids=["small images", "photographs"])
def test_a_corrupt_image_among_good_ones_is_told_and_replaced(
    cli: Cli, recipe: Path, tmp_path: Path, settings: list[str]
) -> None:
    folder = write_images(tmp_path / "images", tiny_images())
    bad = folder / "031.png"
    bad.write_bytes(bad.read_bytes()[:500])
    code, _, err = cli("train", folder, "--recipe", recipe, "--out", tmp_path / "run", *settings)
    assert code == 0, err
    told = f"warning: cannot read the image {bad}: image file is truncated. Another image takes its place.\n"
    assert err.count(told) == 1, err
    listed = tmp_path / "run" / "quarantine.jsonl"
    assert err.endswith(f"warning: 1 of 64 images could not be read: {listed}\n"), err
    (line,) = listed.read_text().splitlines()
    assert json.loads(line) == {"index": 31, "place": str(bad), "reason": "image file is truncated"}


@pytest.mark.parametrize("settings", [[], PHOTOGRAPHS], ids=["small images", "photographs"])
def test_more_bad_images_than_allowed(cli: Cli, recipe: Path, tmp_path: Path, settings: list[str]) -> None:
    folder = write_images(tmp_path / "images", tiny_images())
    (folder / "000.png").write_text("these are notes")
    words = ["train", folder, "--recipe", recipe, "--out", tmp_path / "run", *settings]
    code, out, err = cli(*words, "max_bad_share=0")
    assert (code, out) == (5, "")
    *_, last = err.splitlines()
    assert last.startswith("carp: error: 1 of 64 images (0.016) cannot be read, more than max_bad_share=0 allows"), err
    for part in (f"one is {folder / '000.png'}: it is no image", "quarantine.jsonl", "`carp data check`", "new --out"):
        assert part in last
    assert "Traceback" not in err
    assert cli(*words)[0] == 0, "what the message says must help"


def test_a_batch_larger_than_the_data(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", "batch_size=65")
    assert_one_line(result, "batch_size is 65", "64 images", "Set batch_size=64")


def test_a_validation_folder_without_labels(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", "--val", flat)
    assert_one_line(result, str(flat), "no labels", "one sub-folder per class")


def test_a_validation_folder_that_does_not_exist(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", "--val", "no/such/place")
    assert_one_line(result, "no/such/place", "Give a folder")


# Settings


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("epoch=3", ["'epoch'", "Did you mean 'epochs'?"]),
        ("optimizer=sgd", ["'optimizer'", "Did you mean 'optimiser'?"]),
        ("xyzzy=1", ["'xyzzy'", "no setting"]),
        ("epochs=-1", ["epochs", "received -1", "greater than or equal to 1"]),
        ("epochs=0", ["epochs", "received 0"]),
        ("epochs=abc", ["epochs", "received 'abc'", "integer"]),
        ("epochs=", ["epochs", "received None", "integer"]),
        ("epochs=1.5", ["epochs", "received 1.5"]),
        ("lr=-1", ["lr", "received -1", "greater than or equal to 0"]),
        ("lr=[0.1,0.2,0.3]", ["lr must be one number or [start, end], received [0.1, 0.2, 0.3]"]),
        ("lr=[1]", ["lr must be one number or [start, end], received [1]"]),
        ("lr=.inf", ["lr", "received inf", "finite"]),
        ("optimiser=larz", ["optimiser", "received 'larz'", "'lars'", "Did you mean 'lars'?"]),
        ("teacher_momentum=1.5", ["teacher_momentum", "received 1.5", "less than or equal to 1"]),
        ("micro_batch=5", ["micro_batch", "received 5", "a single image of batch_size (16)"]),
        ("block_size=7", ["block_size", "received 7", "nearest divisors are 4 and 8"]),
        ("block_size=65", ["block_size", "received 65", "64"]),
        ("flip=2", ["flip", "received 2", "less than or equal to 1"]),
        ("max_bad_share=5", ["max_bad_share must be less than or equal to 1 (accepted: 0 to 1), received 5."]),
        ("max_bad_share=-0.1", ["max_bad_share", "(accepted: 0 to 1), received -0.1."]),
        ("max_bad_share=some", ["max_bad_share", "number", "received 'some'"]),
        ("blur=[1,1]", ["blur", "[1, 1]"]),
        ("seed=-1", ["seed", "received -1"]),
        ("precision=fp16", ["precision", "received 'fp16'", "'bf16'"]),
        ("global_scale=[0.5,0.2]", ["global_scale", "[0.5, 0.2]"]),
        ("warmup_epochs=1", ["warmup_epochs", "epochs (1)"]),
        ("encoder_options=3", ["encoder_options", "received 3"]),
        ("lr=[0.1", ["'lr'", "[0.1"]),
        ("fast", ["key=value", "'fast'"]),
        ("=3", ["key=value", "'=3'"]),
    ],
)
def test_a_setting_that_cannot_be(
    cli: Cli, flat: Path, recipe: Path, tmp_path: Path, word: str, expected: list[str]
) -> None:
    assert_one_line(cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", word), *expected)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--epochs", 3], ["no option '--epochs'", "key=value", "epochs=3."]),
        (["--epochs=3"], ["no option '--epochs'", "epochs=3."]),
        (["--batch-size", 3, "epochs=1"], ["no option '--batch-size'", "batch_size=3."]),
        (["--compile", "--dry-run"], ["no option '--compile'", "compile=true."]),
        (["--recipy", "folder"], ["no option '--recipy'", "Did you mean '--recipe'?", "--val"]),
        (["-out", "run"], ["no option '-out'", "Did you mean '--out'?"]),
        (["--epoch", 3], ["no option '--epoch'", "Did you mean 'epochs'?", "carp settings"]),
        (["--xyzzy"], ["no option '--xyzzy'", "--recipe", "carp settings"]),
    ],
)
def test_an_option_that_does_not_exist(
    cli: Cli, flat: Path, recipe: Path, tmp_path: Path, words: list[object], expected: list[str]
) -> None:
    for order in ([flat, *words], [*words, flat]):
        assert_one_line(cli("train", *order, "--recipe", recipe, "--out", tmp_path / "run"), *expected)
    assert_one_line(cli("demo", *words, "--out", tmp_path / "run"), expected[0])
    assert not (tmp_path / "run").exists()


def test_a_second_folder(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "more", "--recipe", recipe, "--out", tmp_path / "run")
    assert_one_line(result, "key=value", "received 'more'", "Only one folder")


def test_a_bad_setting_is_found_before_the_data_are_looked_at(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    assert_one_line(cli("train", "no/such/place", "--recipe", recipe, "--out", tmp_path / "run", "epoch=3"), "'epochs'")


def test_a_setting_that_suits_the_images_is_not_refused_by_the_rule_for_other_sizes(
    cli: Cli, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 images get blocks of 16, so 64 prototypes are fine; and 400 epochs, so 30 of warm-up are."""
    monkeypatch.setattr("carp.commands.dry_run.available_memory", lambda _device: 0)  # do not time it
    code, out, err = cli("train", flat, "--dry-run", "global_size=32", "num_prototypes=64", "warmup_epochs=30")
    assert code == 0, err
    settings = yaml.safe_load(out.split("---")[0])
    assert settings["block_size"] == 16
    assert settings["epochs"] > 30


def test_out_is_missing(cli: Cli, flat: Path) -> None:
    assert_one_line(cli("train", flat), "--out is missing", "--out runs/first")


def test_an_unknown_recipe(cli: Cli, flat: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "--recipe", "imagenet-10", "--out", tmp_path / "run")
    assert_one_line(result, "'imagenet-10'", "Did you mean 'imagenet-100'?", *list_recipes())


@pytest.mark.parametrize("content", ["epochs: [1, 2", "- a\n- b\n", "\tepochs: 1", "epochs: 1\nepoch: 2\n"])
def test_a_broken_recipe_file(cli: Cli, flat: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    assert_one_line(cli("train", flat, "--recipe", path, "--out", tmp_path / "run"))


def test_a_recipe_file_that_is_not_there(cli: Cli, flat: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "--recipe", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert_one_line(result, str(tmp_path / "mine.yaml"), "No such file")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["encoder=resnet19"], ["'resnet19'", "Did you mean 'resnet"]),
        (["encoder=resnet18", "encoder_options={chanels: 3}"], ["resnet18", "chanels"]),
        (["encoder=vit_tiny_patch16_224", "encoder_options={}", "stem=small"], ["vit_tiny_patch16_224", "stem"]),
    ],
)
def test_an_encoder_that_cannot_be_built(
    cli: Cli, flat: Path, recipe: Path, tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    assert_one_line(cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", *words), *expected)
    assert_one_line(cli("train", flat, "--recipe", recipe, "--dry-run", *words), *expected)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cup", "3x"])
def test_a_device_that_is_not_here(cli: Cli, flat: Path, recipe: Path, tmp_path: Path, device: str) -> None:
    result = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run", f"device={device}")
    assert_one_line(result, f"'{device}'", "only", "cpu; a GPU is called 'cuda'", "device=auto")
    assert not (tmp_path / "run").exists()


# Evaluation


def test_eval_in_a_folder_that_is_no_run(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    assert_one_line(cli("eval", "knn", tmp_path, "--data", labelled), str(tmp_path), "not a run folder", "--out")
    assert_one_line(cli("eval", "knn", tmp_path / "nowhere", "--data", labelled), "nowhere", "no folder")
    assert list(tmp_path.iterdir()) == []


def test_eval_of_a_run_without_a_checkpoint(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy), "no checkpoint")


def test_eval_of_a_run_whose_description_is_damaged(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    for content in ("{", "[]", '{"data": {}}'):
        copy = Path(shutil.copytree(run, tmp_path / str(len(content)), ignore=shutil.ignore_patterns("checkpoints")))
        (copy / "run.json").write_text(content)
        assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy / "run.json"))


def test_eval_with_an_unknown_protocol(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "kn", run, "--data", labelled), "'kn'", "Did you mean 'knn'?")
    assert not (run / "results").exists()


def test_eval_without_labels(cli: Cli, run: Path, flat: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, "--data", flat), str(flat), "no labels", "sub-folder per class")
    assert_one_line(cli("eval", "knn", run, "--data", labelled, "--test", flat), str(flat), "no labels")


def test_eval_with_other_classes(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", tiny_images(16), classes=4)
    result = cli("eval", "knn", run, "--data", labelled, "--test", other)
    assert_one_line(result, "different classes", "'class-3' is only in", str(other))


def test_eval_with_more_neighbours_than_images_is_refused_before_anything_is_encoded(
    cli: Cli, run: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("extract", "raw_pixels"):
        monkeypatch.setattr(f"carp.commands.evaluate.{name}", lambda *_, **__: pytest.fail("something was encoded"))
    words = ["eval", "knn", run, "--data", labelled, "--baselines"]
    assert_one_line(cli(*words, "--k", 66), "k = 66", "67 images", "received 66", "Lower k")
    assert_one_line(cli(*words, "--k", 67, "--test", labelled), "k = 67", "67 images", "received 66", "Lower k")
    with pytest.raises(carp.errors.DataError, match=r"k must be at least 1, received 0\."):
        carp.evaluate("knn", run, labelled, k=0)


def test_eval_shows_how_far_it_is_and_python_does_not_unless_asked(
    cli: Cli,
    run: Path,
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    monkeypatch.setattr("carp.training.display._SECONDS_BETWEEN_LINES", 0.0)
    code, _, err = cli("eval", "knn", copy, "--data", labelled, "--baselines", "--k", 5)
    assert code == 0, err
    names = ["raw pixels", "untrained encoder", "student", "teacher"]
    assert err.splitlines() == [f"{name}, {labelled}: 66/66  0:00:00 left" for name in names]
    carp.evaluate("knn", copy, labelled, k=5)
    assert capsys.readouterr() == ("", "")
    carp.evaluate("knn", copy, labelled, k=5, quiet=False)
    assert "student, " in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "66/66" in cli("eval", "knn", copy, "--data", labelled, "--k", 5)[2]
    carp.evaluate("knn", copy, labelled, k=5)
    assert capsys.readouterr() == ("", "")


def test_eval_with_a_temperature_of_zero(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, "--data", labelled, "--temperature", 0), "temperature", "received 0")


def test_eval_writes_and_prints_what_it_found(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    code, out, err = cli("eval", "knn", copy, "--data", labelled, "--baselines", "--k", 5)
    assert code == 0, err
    result = json.loads((copy / "results" / "knn.json").read_text())
    assert list(result["values"]) == ["raw pixels", "untrained encoder", "student", "teacher"]
    for name, value in result["values"].items():
        assert 0 <= value <= 1
        assert name in out
        assert f"{100 * value:.1f}" in out
    assert result["settings"]["k"] == 5


# What works


def test_dry_run_tells_the_plan_and_creates_nothing(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("train", labelled, "--recipe", recipe, "--out", "run", "--dry-run", "epochs=3")
    assert code == 0, err
    assert list(tmp_path.iterdir()) == []
    settings, _, plan = out.partition("---\n")
    config = resolve(yaml.safe_load(settings), num_images=66)
    assert config == resolve({**TINY, "epochs": 3}, num_images=66)
    branch = Branch(config)
    for name, module in [("encoder", branch.encoder), ("projector", branch.projector), ("prototype", branch.assigner)]:
        count = sum(p.numel() for p in module.parameters())
        assert re.search(rf"{name} parameters +{count:,}\n", plan), plan
    assert re.search(r"images +66 ", plan)
    assert re.search(r"classes +3\n", plan)
    assert re.search(r"steps +12 \(4 an epoch\)", plan)
    assert float(re.search(r"memory in all +([\d.]+) GiB", plan)[1]) >= 0
    assert re.search(r"stem +small \(3×3, stride 2, no pooling\), because global_size 32 <= 64; stem=encoder", plan)
    assert re.search(r"time +about [\d.]+ s \([\d.]+ s a step, measured over 3 steps on cpu\)\n", plan), plan
    assert "warning" not in plan


def test_dry_run_with_the_default_recipe_needs_nothing_but_images(
    cli: Cli, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.training.timing._SECONDS", 0.1)
    code, out, err = cli("train", flat, "--dry-run")
    assert code == 0, err
    assert "memory in all" in out
    assert re.search(r"stem +the encoder's own, because global_size 160 > 64\n", out)
    assert re.search(r"warning +images are 32×32 and global_size is 160: consider --recipe small-images", out)
    assert re.search(r"time +at most .* a step, measured over 1 step of 8 images, scaled to 16, on ", out)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stem=encoder"], "the encoder's own, as set"),
        (["stem=small", "stem_stride=1"], "small (3×3, stride 1, no pooling), as set"),
        (["encoder=convnext_atto", "encoder_options={}"], "the encoder's own, because convnext_atto is not a ResNet"),
    ],
)
def test_dry_run_says_which_stem_and_why(
    cli: Cli, flat: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.setattr("carp.commands.dry_run.available_memory", lambda _device: 0)
    code, out, err = cli("train", flat, "--recipe", recipe, "--dry-run", *words)
    assert code == 0, err
    assert re.search(rf"stem +{re.escape(expected)}\n", out), out


def test_dry_run_does_not_time_what_does_not_fit_into_memory(
    cli: Cli, flat: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.commands.dry_run.available_memory", lambda _device: 2**10)
    monkeypatch.setattr("carp.commands.dry_run.time_steps", lambda *_: pytest.fail("it was timed"))
    code, out, err = cli("train", flat, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +not measured: [\d.]+ GiB are needed and 0.00 GiB are free\n", out), out


def test_dry_run_measures_the_time_though_an_image_cannot_be_read(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images())
    (folder / "000.png").write_bytes(b"")
    code, out, err = cli("train", folder, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +about ", out), out
    for path in folder.iterdir():
        path.write_bytes(b"")
    code, out, err = cli("train", folder, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +not measured: none of the \d+ images of .* can be read; the first is ", out), out


def test_training_begins_with_a_line_about_the_run(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    code, _, err = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    first = err.splitlines()[0]
    parameters = sum(p.numel() for p in Branch(resolve({**TINY}, num_images=64)).encoder.parameters())
    threads = torch.get_num_threads()
    assert first.startswith(f"64 images, resnet18 ({parameters / 1e6:.3g} M parameters), 4 steps in 1 epoch, cpu with ")
    assert first.endswith(f"{threads} thread" + ("s" if threads > 1 else ""))


def test_training_begins_with_a_warning_when_the_views_do_not_suit_the_images(
    cli: Cli, recipe: Path, tmp_path: Path
) -> None:
    photos = write_images(tmp_path / "photos", tiny_images(16, 128))
    code, _, err = cli("train", photos, "--recipe", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    assert err.startswith("warning: images are 128×128 and global_size is 32: most detail is lost; consider --recipe")


def test_words_and_keyword_arguments_make_the_same_configuration(
    cli: Cli, flat: Path, recipe: Path, tmp_path: Path
) -> None:
    words = ["lr=[1e-2, 1e-3]", "epochs=1", "clip_gradient=3", "encoder_options={channels: [8, 8, 8, 8]}"]
    code, out, err = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "words", *words)
    assert code == 0, err
    assert str(tmp_path / "words") in out
    carp.train(
        flat,
        tmp_path / "arguments",
        recipe,
        quiet=True,
        lr=(0.01, 0.001),
        epochs=1,
        clip_gradient=3.0,
        encoder_options={"channels": [8, 8, 8, 8]},
    )
    by_words, by_arguments = ((tmp_path / name / "config.yaml").read_text() for name in ("words", "arguments"))
    assert by_words == by_arguments
    # And the file that was written is itself a recipe for the same run.
    code, _, err = cli("train", flat, "--recipe", tmp_path / "words" / "config.yaml", "--out", tmp_path / "arguments")
    assert code == 0, err
    assert "finished" in err


def test_recipes_are_listed_with_their_first_line(cli: Cli) -> None:
    code, out, _ = cli("recipes")
    assert code == 0
    for name, line in list_recipes().items():
        assert re.search(rf"^{re.escape(name)} +{re.escape(line)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_shown_with_its_comments(cli: Cli, name: str) -> None:
    code, out, _ = cli("recipes", name)
    assert code == 0
    assert out.startswith(f"# {list_recipes()[name]}")
    assert yaml.safe_load(out) == read_recipe(name)


def test_a_misspelt_recipe_or_setting_is_not_shown(cli: Cli) -> None:
    assert_one_line(cli("recipes", "foldr"), "'foldr'", "Did you mean 'folder'?")
    assert_one_line(cli("recipes", "mine.yaml"), "mine.yaml", "No such file")
    assert_one_line(cli("settings", "epoch"), "'epoch'", "Did you mean 'epochs'?")


def test_settings_are_shown_with_default_accepted_values_and_meaning(cli: Cli) -> None:
    code, out, _ = cli("settings")
    assert code == 0
    shown = re.findall(r"^  (\w+)=(.*?)   \((.+)\)\n      (.+)$", out, re.MULTILINE)
    assert [key for key, *_ in shown] == list(Config.model_fields)
    # What is shown as the default is accepted as a setting and is the default.
    assert resolve(parse_overrides([f"{key}={value}" for key, value, *_ in shown]), num_images=1) == Config()
    accepted = {key: words for key, _, words, _ in shown}
    assert accepted["epochs"] == "auto or whole number >= 1"
    assert accepted["micro_batch"] == "auto or whole number >= 2 or null"
    assert accepted["momentum"] == "number >= 0 and < 1"
    assert accepted["lr"] == "one number or [start, end], each >= 0"
    assert accepted["optimiser"] == "lars or sgd or adamw"
    assert accepted["compile"] == "true or false"
    code, one, _ = cli("settings", "lr")
    assert code == 0
    assert one.splitlines() == [f"lr=[0.6, 0.006]   ({accepted['lr']})", "    Learning rate; see lr_scaling."]


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"carp {carp.__version__}\n", "")


def test_help_of_every_command(cli: Cli) -> None:
    for command in (["train"], ["eval"], ["demo"], ["recipes"], ["settings"], ["data"], ["data", "check"]):
        code, out, _ = cli(*command, "--help")
        assert code == 0
        assert "Usage" in out


def test_help_answers_at_once_and_without_torch() -> None:
    command = [sys.executable, "-m", "carp", "--help"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: what a machine with nothing else to do would show on the clock.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "Learn image encoders" in done.stdout
    assert min(seconds) < 0.5
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "carp.cli" in imported
    assert not {"torch", "timm", "torchvision", "pydantic"} & imported


def test_demo_trains_evaluates_and_says_where_everything_is(cli: Cli, tmp_path: Path) -> None:
    small = [f"{key}={json.dumps(TINY[key])}" for key in ("encoder_options", "projector_hidden", "embedding")]
    settings = ["epochs=1", "batch_size=256", "num_prototypes=64", "block_size=8", "stem_stride=4", *small]
    code, out, err = cli("demo", "--out", tmp_path / "demo", *settings)
    assert code == 0, err
    values = json.loads((tmp_path / "demo" / "results" / "knn.json").read_text())["values"]
    assert list(values) == ["raw pixels", "untrained encoder", "student", "teacher"]
    assert str(tmp_path / "demo") in out
    assert steps_of(tmp_path / "demo")
    assert read_yaml(tmp_path / "demo" / "config.yaml")["epochs"] == 1
    assert torch.isfinite(torch.tensor(list(values.values()))).all()
