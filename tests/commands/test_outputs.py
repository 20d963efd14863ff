"""What cannot be written, and what does not fit into memory, is one line before any work is done."""

from pathlib import Path

import pytest
import torch

from carp.config import Config
from carp.console.progress import Display
from carp.errors import ConfigError
from carp.files.outputs import check_output_file, check_output_folder
from carp.training.planning import memory_check
from carp.training.planning.estimate import estimate
from carp.training.planning.memory_check import memory_problem
from carp.training.preparation import open_for_training
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images

NOWHERE = "/proc/x"  # where nobody may create anything, not even the superuser


def test_every_command_refuses_an_output_that_cannot_be_written(
    cli: Cli, tmp_path: Path, flat: Path, labelled: Path, run: Path
) -> None:
    assert cli("embed", run, "--data", flat, "--out", tmp_path / "features")[0] == 0
    for words in (
        ("train", flat, "--out", NOWHERE),
        ("demo", "--out", NOWHERE),
        ("embed", run, "--data", flat, "--out", NOWHERE),
        ("eval", "knn", run, "--data", labelled, "--out", NOWHERE),
        ("export", run, "--format", "safetensors", "--out", f"{NOWHERE}.safetensors"),
        ("export", run, "--format", "timm", "--out", NOWHERE),
        ("index", tmp_path / "features", "--out", NOWHERE),
        ("duplicates", flat, "--model", run, "--out", NOWHERE),
        ("views", flat, "--out", f"{NOWHERE}.png"),
        ("data", "attack", flat, "--out", NOWHERE),
        ("data", "attack", flat, "--out", tmp_path / "copies", "--sheet", f"{NOWHERE}.png"),
        ("table", run, "--out", f"{NOWHERE}.md"),
        ("search", tmp_path / "features", flat / "000.png", "--sheet", f"{NOWHERE}.png"),
    ):
        assert_one_line(cli(*words), NOWHERE)
    assert not (tmp_path / "copies").exists()


def test_checking_an_output_leaves_nothing_behind(tmp_path: Path) -> None:
    check_output_folder(tmp_path / "a" / "b")
    check_output_file(tmp_path / "a" / "b.txt")
    assert not any(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_folder_and_the_reverse_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="is a file"):
            check_output_folder(path)
    with pytest.raises(ConfigError, match="is a folder"):
        check_output_file(tmp_path)
    with pytest.raises(ConfigError, match="name too long"):
        check_output_folder(tmp_path / ("x" * 300))


# Memory


@pytest.mark.parametrize(
    "setting",
    [
        "num_prototypes=100000000000",
        "global_size=100000",
        pytest.param("projector_hidden=1000000", marks=pytest.mark.slow),
        pytest.param("embedding=1000000", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_does_not_fit_names_the_setting_and_a_value_that_fits(
    cli: Cli, tmp_path: Path, flat: Path, setting: str
) -> None:
    key, _, number = setting.partition("=")
    words = ("train", flat, setting, "--out", tmp_path / "run", "device=cpu", "workers=0")
    result = cli(*words)
    assert_one_line(result, f"set {key}=")
    assert not (tmp_path / "run").exists()
    value = int(result[2].partition(f"set {key}=")[2].split()[0].rstrip("."))
    assert value < int(number)
    free = memory_check.memory_for_training(torch.device("cpu"))
    config, *_ = open_for_training(flat, None, {key: value, "device": "cpu"}, Display(quiet=True))
    assert estimate(config).total_bytes < free
    code, out, _ = cli(*words[:3], "--dry-run", "device=cpu", "workers=0")
    assert code == 0
    assert f"set {key}=" in out


def test_the_advice_of_a_large_batch_is_a_micro_batch_and_it_fits() -> None:
    config = Config(encoder="resnet18", global_size=64, batch_size=1024, num_prototypes=1024, block_size=256)
    needs = estimate(config)
    free = needs.total_bytes // 2
    problem = memory_problem(config, needs, free)
    assert problem is not None
    size = int(problem.partition("micro_batch=")[2].rstrip("."))
    assert estimate(config.model_copy(update={"micro_batch": size})).total_bytes <= 0.7 * free
    assert estimate(config.model_copy(update={"micro_batch": 2 * size})).total_bytes > 0.7 * free
    assert memory_problem(config, needs, needs.total_bytes) is None


def test_an_encoder_that_never_fits_is_said_to_be_too_large() -> None:
    config = Config(global_size=64, batch_size=2, num_prototypes=256, block_size=256, projector_hidden=64, embedding=16)
    problem = memory_problem(config, estimate(config), 1000)
    assert problem is not None
    assert "encoder" in problem


def test_memory_refused_by_the_allocator_is_one_line(
    cli: Cli, tmp_path: Path, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is told that everything fits, so that the allocator itself refuses."""
    monkeypatch.setattr(memory_check, "available_memory", lambda _device: 1 << 62)
    code, out, err = cli(
        "train", flat, "num_prototypes=1000000000000", "embedding=65536", "--out", tmp_path / "run", "device=cpu"
    )
    assert code == 1
    assert out == ""
    assert "not enough memory" in err
    assert "Traceback" not in err
    assert err.rstrip().splitlines()[-1].startswith("carp: error:")


def test_a_dry_run_checks_the_images_for_validation(cli: Cli, tmp_path: Path, flat: Path) -> None:
    assert_one_line(cli("train", flat, "--dry-run", "--val", tmp_path / "none"), "none")
    assert_one_line(cli("train", flat, "--dry-run", "--val", flat), "no labels")


# Few images


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_the_defaults_train_on_a_handful_of_images(cli: Cli, tmp_path: Path, count: int) -> None:
    images = write_images(tmp_path / "images", tiny_images(count))
    code, _, err = cli("train", images, "--out", tmp_path / "run", "epochs=1", "workers=0")
    assert code == 0, err
    assert f"{count} images" in err


def test_one_image_is_refused_with_what_to_do(cli: Cli, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(1))
    assert_one_line(cli("train", images, "--out", tmp_path / "run"), "at least 2", "Add images")


def test_a_batch_larger_than_the_images_is_refused_with_a_size_that_works(cli: Cli, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", tiny_images(3))
    assert_one_line(cli("train", images, "batch_size=16", "--out", tmp_path / "run"), "batch_size=3 or less")
