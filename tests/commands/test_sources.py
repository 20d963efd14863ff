"""Every kind of data through the commands: training, continuing, validation, evaluation."""

import re
import shlex
from pathlib import Path

import pytest

import carp
from carp.config import check_keys
from carp.config.recipe import parse_overrides
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import assert_same_run, tiny_images, write_images, write_recipe
from tests.images.test_dataset_source import write_voc
from tests.images.test_paper_datasets import resize_row
from tests.images.test_tar_shards import write_shards

DOCS = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_page_on_data_shows_settings_that_exist():
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)).splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("carp train")]
    assert len(commands) >= 8
    for words in commands:
        assert "--out" in words, words
        check_keys(parse_overrides([word for word in words if re.match(r"\w+=", word)]))


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path / "tiny.yaml", epochs=1)


def test_training_keeps_the_index_and_continues_with_it(tmp_path, recipe):
    folder = write_images(tmp_path / "photos", tiny_images(), classes=2)
    settings = {"quiet": True, "global_size": 72, "workers": 1, "validation": str(folder)}
    run = carp.train(folder, tmp_path / "run", recipe, **settings)
    assert len(list((run.folder / "index").glob("*.index"))) == 1  # training and validation are the same folder
    carp.train(folder, tmp_path / "run", recipe, **settings)
    (run.folder / "index").rename(tmp_path / "gone")
    carp.train(folder, tmp_path / "run", recipe, **settings)


def test_a_run_on_shards_is_the_same_whether_interrupted_or_not(tmp_path, recipe):
    shards = write_shards(tmp_path / "shards", tiny_images(), per_shard=7)
    settings = {
        "quiet": True,
        "epochs": 3,
        "global_size": 72,
        "workers": 2,
        "shuffle_buffer": 20,
        "keep_checkpoints": 9,
    }
    carp.train(shards, tmp_path / "whole", recipe, **settings, checkpoint_steps=3)
    carp.train(shards, tmp_path / "part", recipe, **settings, checkpoint_steps=3)
    for newest in sorted((tmp_path / "part" / "checkpoints").iterdir())[1:]:  # as if it had ended at step 3
        for file in sorted(newest.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        newest.rmdir()
    carp.train(shards, tmp_path / "part", recipe, **settings, checkpoint_steps=3)
    assert_same_run(tmp_path / "whole", tmp_path / "part")


def test_source_and_prefix_from_the_command_line(tmp_path, recipe, cli: Cli):
    write_images(tmp_path / "photos", tiny_images())
    listed = tmp_path / "images.lst"
    listed.write_text("".join(f"photos/{i:03d}.png\t{i % 2}\n" for i in range(64)))
    code, _, err = cli(
        "train", listed, "--recipe", recipe, "--out", tmp_path / "run", "source=list", "--val", f"list:{listed}"
    )
    assert code == 0, err
    code, _, err = cli("eval", "knn", tmp_path / "run", "--data", f"list:{listed}", "k=3")
    assert code == 0, err
    code, out, err = cli("train", f"list:{listed}", "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert "64 in " in out
    code, _, err = cli("train", listed, "--recipe", recipe, "--out", tmp_path / "other", "source=lst")
    assert code == 2
    assert "Did you mean 'list'?" in err


def test_root_and_download_reach_validation_and_evaluation(tmp_path, recipe, cli: Cli):
    write_images(tmp_path / "data" / "eurosat" / "2750", tiny_images(), classes=2)
    name, root = "torchvision:EuroSAT", f"root={tmp_path / 'data'}"
    code, _, err = cli("train", name, "--recipe", recipe, "--out", tmp_path / "run", root, "--val", name)
    assert code == 0, err
    code, _, err = cli("eval", "knn", tmp_path / "run", "--data", name, "k=3")
    assert code == 0, err


def test_data_sets_by_name_reach_every_command(tmp_path, recipe, cli: Cli, monkeypatch):
    resize_row(monkeypatch, "cifar10", 64, 12, 2)
    write_images(tmp_path / "data" / "cifar10" / "train", tiny_images(), classes=2)
    write_images(tmp_path / "data" / "cifar10" / "test", tiny_images(12), classes=2)
    words, root = ("dataset:cifar10", "dataset:cifar10:test"), f"root={tmp_path / 'data'}"
    code, _, err = cli("train", words[0], "--recipe", recipe, "--out", tmp_path / "run", root, "--val", words[1])
    assert code == 0, err
    code, _, err = cli("eval", "knn", tmp_path / "run", "--data", words[0], "--test", words[1], "k=3")
    assert code == 0, err
    assert_one_line(cli("data", "check", "dataset:pets", root), "dataset:pets:train is not in", "carp datasets --root")


def test_several_labels_are_counted_and_not_for_k_nn(tmp_path, recipe, cli: Cli, monkeypatch):
    resize_row(monkeypatch, "voc07", 4, 4, 20)
    write_images(tmp_path / "photos", tiny_images())
    root = f"root={write_voc(tmp_path)}"
    code, out, err = cli("data", "check", "dataset:voc07:test", root)
    assert code == 0, err
    assert "aeroplane: 1" in out
    assert "chair: 0" in out  # a difficult one only
    train = ("train", tmp_path / "photos", "--recipe", recipe, "--out", tmp_path / "run", root)
    assert_one_line(cli(*train, "--val", "dataset:voc07"), "one label per image", "voc07:train has several")
    assert cli(*train)[0] == 0
    assert_one_line(cli("eval", "knn", tmp_path / "run", "--data", "dataset:voc07", "k=1"), "one label per image")
