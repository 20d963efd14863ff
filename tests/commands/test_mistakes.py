"""Every mistake is one line that says what was received and what to do; no mistake shows a traceback."""

import json
from pathlib import Path

import pytest
import yaml

from carp.config.recipe import list_recipes
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images

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
    told = f"warning: cannot read the image {bad}: image file is truncated. It is replaced by another image.\n"
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
    for part in (
        f"one is {folder / '000.png'}: it is not an image",
        "quarantine.jsonl",
        "`carp data check`",
        "new --out",
    ):
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
        ("quiet=1", ["'quiet'", "no setting"]),
        ("recipe=demo", ["'recipe' is an option", "--recipe demo"]),
        ("dry_run=true", ["'dry_run' is an option", "--dry-run"]),
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
        ("micro_batch=5", ["micro_batch", "received 5", "batch_size (16)"]),
        ("block_size=7", ["block_size", "received 7", "nearest divisors are 4 and 8"]),
        ("block_size=65", ["block_size", "received 65", "64"]),
        ("flip=2", ["flip", "received 2", "less than or equal to 1"]),
        ("max_bad_share=5", ["max_bad_share must be less than or equal to 1 (accepted: 0 to 1), received 5."]),
        ("max_bad_share=-0.1", ["max_bad_share", "(accepted: 0 to 1), received -0.1."]),
        ("max_bad_share=some", ["max_bad_share", "number", "received 'some'"]),
        ("blur=[1,1]", ["blur", "[1, 1]"]),
        ("seed=-1", ["seed", "received -1"]),
        ("precision=fp61", ["precision", "received 'fp61'", "Did you mean 'fp16'?"]),
        ("reading=author", ["reading", "received 'author'", "Did you mean 'authors'?"]),
        ("reading=[authors]", ["reading", "received ['authors']"]),
        ("pairs=average", ["pairs", "'sum' or 'mean'", "received 'average'"]),
        ("uniformity=colision", ["uniformity", "received 'colision'", "Did you mean 'collision'?"]),
        ("start_share=outo", ["start_share", "number", "or auto", "received 'outo'", "Did you mean 'auto'?"]),
        ("epochs=atuo", ["epochs", "or auto", "received 'atuo'", "Did you mean 'auto'?"]),
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


def test_a_missing_argument_is_named(cli: Cli) -> None:
    result = cli("train", "--out", "x")
    assert_one_line(result, "missing argument", "`carp train --help`")
    assert "'data'" in result[2].lower(), "old versions of typer write it in capitals"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tarin", "x"], ["no such command 'tarin'", "Did you mean 'train'?"]),
        (["views", "x", "--images", "200"], ["invalid value for '--images'", "100"]),
        (["views", "x", "--images", "ten"], ["'--images': ", "a valid integer", "'ten'", "`carp views --help`"]),
        (["train", "x", "--out", "y", "epochs=ten"], ["epochs must be a valid integer (accepted", "received 'ten'"]),
        (["eval", "knn", "x", "--k"], ["'--k' requires an argument", "`carp COMMAND --help`"]),
        (["eval", "knn", "x", "--data", "embedded:shapes", "k=2.5"], ["k must be a valid integer, received 2.5"]),
        (["data", "chek", "x"], ["no such command 'chek'", "`carp data --help`"]),
        (["data", "check", "lits:a.txt"], ["Did you mean 'list:a.txt'?"]),
        (["views", "embedded:shapes", "--out", "v.jpg"], ["must end in .png", "v.jpg"]),
    ],
)
def test_words_that_the_command_line_does_not_know(cli: Cli, words: list[str], expected: list[str]) -> None:
    assert_one_line(cli(*words), *expected)


def test_a_second_folder(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    result = cli("train", flat, "more", "--recipe", recipe, "--out", tmp_path / "run")
    assert_one_line(result, "key=value", "received 'more'", "Only one folder")


def test_a_bad_setting_is_found_before_the_data_are_looked_at(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    assert_one_line(cli("train", "no/such/place", "--recipe", recipe, "--out", tmp_path / "run", "epoch=3"), "'epochs'")


def test_a_setting_that_suits_the_images_is_not_refused_by_the_rule_for_other_sizes(
    cli: Cli, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 images get blocks of 16, so 64 prototypes are fine; and 400 epochs, so 30 of warm-up are."""
    monkeypatch.setattr("carp.training.planning.memory_check.available_memory", lambda _device: 0)  # do not time it
    code, out, err = cli(
        "train", flat, "--dry-run", "global_size=32", "num_prototypes=64", "block_size=auto", "warmup_epochs=30"
    )
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
    assert_one_line(result, f"'{device}'", "cpu", "a GPU is called 'cuda'", "device=auto")
    assert not (tmp_path / "run").exists()


def test_images_without_their_option(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, labelled), f"--data {labelled}")
