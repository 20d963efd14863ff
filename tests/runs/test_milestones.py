"""`keep_epochs`: checkpoints of some epochs are kept for good, and `RUN@EPOCH` reaches them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from carp.config import FREE_KEYS, Config, resolve
from carp.errors import CarpError, CheckpointError, ConfigError
from carp.runs.checkpoint import is_milestone, list_checkpoints, load
from carp.runs.epoch_argument import at_epoch, split_epoch
from carp.runs.run_folder import open_run
from tests.helpers import assert_same_bits, assert_same_run, tiny_images, write_images, write_recipe

EPOCHS = 6  # of two steps


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), tiny_images(34), classes=3)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "tiny.yaml", epochs=EPOCHS, keep_checkpoints=2)


@pytest.fixture(scope="module")
def plain(images: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps no epochs."""
    return trained(images, tmp_path_factory.mktemp("plain") / "run", recipe)


@pytest.fixture(scope="module")
def run(images: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps every other epoch. Copy it before you change it."""
    return trained(images, tmp_path_factory.mktemp("kept") / "run", recipe, keep_epochs=2)


def trained(images: Path, out: Path, recipe: Path, **settings: Any) -> Path:
    carp.train(images, out, recipe, quiet=True, **settings)
    return out


def kept(run: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run / "checkpoints") if is_milestone(path)]


def test_epochs_are_kept_and_nothing_that_is_computed_changes(run: Path, plain: Path) -> None:
    assert kept(run) == ["step-00000004-epoch-2", "step-00000008-epoch-4", "step-00000012-epoch-6"]
    assert kept(plain) == []
    assert_same_run(run, plain)
    assert list(open_run(run).epochs()) == [2, 4, 5, 6]
    assert open_run(run).kept_epochs() == [2, 4, 6]  # step 10 is there because checkpoint_steps is 5
    assert list(open_run(plain).epochs()) == [5, 6]
    assert open_run(plain).kept_epochs() == [6]


def test_a_list_keeps_these_epochs_and_a_resumed_run_may_change_it(
    images: Path, recipe: Path, plain: Path, tmp_path: Path
) -> None:
    out = trained(images, tmp_path / "run", recipe, keep_epochs=[1, 3])
    assert kept(out) == ["step-00000002-epoch-1", "step-00000006-epoch-3"]
    for path in list_checkpoints(out / "checkpoints"):  # as if it had been killed in epoch 4
        if load(path).step > 6:
            shutil.rmtree(path)
    trained(images, out, recipe, keep_epochs=5)
    assert kept(out) == ["step-00000002-epoch-1", "step-00000006-epoch-3", "step-00000010-epoch-5"]
    assert_same_run(out, plain)


def test_the_run_at_an_epoch_is_that_of_a_run_that_stopped_there(run: Path, images: Path) -> None:
    """Features, names and descriptions of two epochs differ; the newest checkpoint has no epoch in its name."""
    early, late, newest = carp.load(f"{run}@2"), carp.load(run, epoch=6), carp.load(run)
    assert_same_bits(
        {k: v for k, v in early.module.state_dict().items() if k.endswith("weight")},
        {
            k.removeprefix("model.teacher.encoder."): v
            for k, v in load(run / "checkpoints" / "step-00000004-epoch-2").tensors.items()
            if k.startswith("model.teacher.encoder.") and k.endswith("weight")
        },
    )
    assert early.hash != late.hash == newest.hash
    assert (early.epoch, late.epoch, newest.epoch) == (2, 6, None)
    assert (early.epochs, late.epochs, newest.epochs) == (2, 6, 6)
    assert early.description()["epoch"] == 2
    assert "epoch" not in newest.description()
    assert early.path == f"{run}@2"
    assert carp.load(f"{run}@2", "untrained").epoch is None
    assert not np.allclose(early.embed(images), late.embed(images))
    assert carp.load(open_run(run).folder, epoch=2).hash == early.hash


def test_a_run_that_is_not_finished_says_how_many_epochs_it_has(run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(run, half)
    for path in list_checkpoints(half / "checkpoints"):
        if load(path).step > 8:
            shutil.rmtree(path)
    assert carp.load(half).epochs == 4


def test_a_missing_epoch_is_one_line_with_those_that_exist(run: Path, tmp_path: Path) -> None:
    for model in (f"{run}@3", f"{run}@0", f"{run}@999999999"):
        with pytest.raises(
            CheckpointError, match=r"no checkpoint at the end of epoch \d+\. Epochs that exist: 2, 4, 5, 6"
        ):
            carp.load(model)
    empty = tmp_path / "empty"
    shutil.copytree(run, empty)
    shutil.rmtree(empty / "checkpoints")
    with pytest.raises(CheckpointError, match=r"No epoch has one"):
        carp.load(f"{empty}@2")


def test_a_damaged_epoch_is_an_error_and_no_other_takes_its_place(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "checkpoints" / "step-00000004-epoch-2" / "tensors.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="damaged"):
        carp.load(f"{copy}@2")
    assert carp.load(f"{copy}@4").epoch == 4
    checked = {file.path: file.verdict for file in carp.check_folder(copy).files}
    assert checked["checkpoints/step-00000004-epoch-2"] == "damaged"
    assert checked["checkpoints/step-00000008-epoch-4"] == "ok"


@pytest.mark.parametrize("given", ["x", "2.5", "-1", "", " 2"])
def test_an_epoch_that_is_not_a_number_is_a_mistake(run: Path, given: str) -> None:
    with pytest.raises(CarpError, match=r"RUN@25|no folder or file"):
        carp.load(f"{run}@{given}")


@pytest.mark.parametrize("epoch", [-1, True, "2", 2.0])
def test_an_epoch_must_be_a_whole_number(run: Path, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="epoch must be a whole number of at least 0"):
        carp.load(run, epoch=epoch)


def test_epochs_belong_to_runs(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(b"x")
    for model in (file, tmp_path / "nothing", f"swav:{file}"):
        with pytest.raises(CheckpointError, match="--epoch needs a run folder"):
            carp.load(model, epoch=2)
    with pytest.raises(ConfigError, match="two different epochs"):
        carp.load(f"{run}@2", epoch=4)
    with pytest.raises(ConfigError, match="needs a run"):
        at_epoch(None, 2)
    assert carp.load(f"{run}@2", epoch=2).epoch == 2


def test_a_folder_whose_name_looks_like_an_epoch_is_that_folder(run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "run@2"
    shutil.copytree(run, odd)
    assert split_epoch(odd) == (odd, None)
    assert split_epoch(f"{odd}@4") == (odd, 4)
    assert carp.load(odd).epoch is None
    assert carp.load(odd, epoch=4).hash == carp.load(f"{run}@4").hash


@pytest.mark.parametrize("value", [0, -25, True, 2.5, "abc", [], [0], [25, "x"], [[25]], {"a": 1}])
def test_a_wrong_setting_is_refused_with_both_ways_to_write_it(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"keep_epochs must be a number of epochs, a list of epochs .*received"):
        resolve({"keep_epochs": value}, num_images=100)


def test_the_setting_is_free_and_its_epochs_lie_within_the_run() -> None:
    assert "keep_epochs" in FREE_KEYS
    assert [epoch for epoch in range(1, 101) if Config(keep_epochs=25).keeps(epoch)] == [25, 50, 75, 100]
    assert [epoch for epoch in range(1, 101) if Config(keep_epochs=(50, 25, 50)).keeps(epoch)] == [25, 50]
    assert not Config().keeps(100)
    with pytest.raises(ConfigError, match=r"keep_epochs must not exceed epochs \(100\), received \[25, 101\]"):
        resolve({"keep_epochs": [25, 101]}, num_images=100)


def test_validation_on_all_images_is_that_of_evaluation(images: Path, recipe: Path, tmp_path: Path) -> None:
    """With the whole bank, k-NN during training is what `carp eval knn` measures."""
    from carp.evaluation.during_training import validation
    from carp.runs.metrics_log import read_metrics

    queries = write_images(tmp_path / "queries", tiny_images(40, seed=1), classes=3)
    measured = {}
    for bank in ("sample", "all"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "_LARGEST_BANK", 30)
            patch.setattr(validation, "_LARGEST_QUERIES", 20)
            out = trained(images, tmp_path / bank, recipe, epochs=1, validation=str(queries), validation_bank=bank)
        lines = [line for line in read_metrics(out / "metrics.jsonl") if "knn_student" in line]
        measured[bank] = (lines[-1]["knn_student"], lines[-1]["knn_teacher"])
    expected = [
        carp.evaluate("knn", tmp_path / "all", images, test=queries, branch=branch, k=20).values["top1@20"]
        for branch in ("student", "teacher")
    ]
    assert measured["all"] == pytest.approx(expected)
    assert measured["sample"] != pytest.approx(expected)
    with pytest.raises(CheckpointError, match=r"validation_bank must not change.*metrics\.jsonl"):
        trained(images, tmp_path / "all", recipe, epochs=1, validation=str(queries))
