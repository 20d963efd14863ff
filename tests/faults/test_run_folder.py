"""Which folder a run may use: another configuration, other images, another process or other files are refused."""

import shutil
import signal
from pathlib import Path

import pytest

import carp as carp_package
from carp.config import FREE_KEYS, METRICS_KEYS, Config
from carp.errors import CheckpointError
from tests.faults.conftest import Server, wait_until
from tests.helpers import steps_of, tiny_images, write_images, write_recipe


@pytest.fixture
def copied_run(short_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short_run, tmp_path / "run"))


def one_error(code: int, output: str) -> str:
    assert code == 2, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    return line


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_another_configuration_is_refused_with_the_difference(
    carp: Server, images: Path, recipe: Path, copied_run: Path
) -> None:
    before = snapshot(copied_run)
    words = ["train", images, "--recipe", recipe, "--out", copied_run]
    error = one_error(*carp.run(*words, "epochs=6", "seed=4", "lr=0.5"))
    assert "epochs: 5 -> 6" in error
    assert "seed: 3 -> 4" in error
    assert "lr: (0.6, 0.006) -> (0.5, 0.5)" in error
    assert "batch_size" not in error
    assert "metrics" not in error
    assert str(copied_run) in error
    assert snapshot(copied_run) == before


def test_other_images_are_refused_with_the_difference(
    carp: Server, recipe: Path, copied_run: Path, tmp_path: Path
) -> None:
    other = write_images(tmp_path / "other", tiny_images(70))
    before = snapshot(copied_run)
    error = one_error(*carp.run("train", other, "--recipe", recipe, "--out", copied_run, "epochs=5"))
    assert "other images" in error
    assert f"{other} (then " in error
    assert "has 64 before, 70 now" in error
    assert "another --out" in error
    assert snapshot(copied_run) == before


def test_an_image_that_changed_in_the_folder_is_noticed(carp: Server, recipe: Path, tmp_path: Path) -> None:
    data = write_images(tmp_path / "images", tiny_images())
    words = ["train", data, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1"]
    assert carp.run(*words)[0] == 0
    (data / "000.png").rename(data / "renamed.png")
    assert f"{data} has 64 as before, but other names or contents." in one_error(*carp.run(*words))


def test_a_removed_image_is_told_with_the_counts_even_where_sizes_follow_from_the_images(
    carp: Server, recipe: Path, tmp_path: Path
) -> None:
    data = write_images(tmp_path / "images", tiny_images(256))
    words = ["train", data, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1", "num_prototypes=256"]
    words += ["batch_size=auto"]
    assert carp.run(*words)[0] == 0
    (data / "000.png").unlink()
    error = one_error(*carp.run(*words))
    assert f"{data} has 256 before, 255 now." in error
    assert "Restore the images" in error
    assert "batch_size" not in error


@pytest.mark.parametrize("key", sorted(METRICS_KEYS))
def test_a_setting_of_the_metrics_is_refused_with_the_reason(
    images: Path, recipe: Path, copied_run: Path, key: str
) -> None:
    changed: int | str = "all" if key == "validation_bank" else 3
    with pytest.raises(CheckpointError) as raised:
        carp_package.train(images, copied_run, recipe, quiet=True, epochs=5, **{key: changed})
    assert f"{key}: " in str(raised.value)
    assert f"{key} must not change" in str(raised.value)
    assert "metrics.jsonl" in str(raised.value)


def test_free_keys_may_change(carp: Server, images: Path, recipe: Path, copied_run: Path) -> None:
    changes = {
        "workers": 1,
        "checkpoint_steps": 3,
        "checkpoint_minutes": 1,
        "keep_checkpoints": 2,
        "on_collapse": "stop",
    }
    assert FREE_KEYS.issuperset(changes)
    assert Config.model_fields.keys() >= FREE_KEYS
    words = [f"{key}={value}" for key, value in changes.items()]
    code, output = carp.run("train", images, "--recipe", recipe, "--out", copied_run, "epochs=5", *words)
    assert code == 0, output
    assert "finished" in output


def test_a_finished_run_says_so_and_stays_as_it_is(carp: Server, images: Path, recipe: Path, copied_run: Path) -> None:
    words = ("train", images, "--recipe", recipe, "--out", copied_run, "epochs=5")
    carp.run(*words)  # an index made right after its images is not trusted, and made again once
    before = snapshot(copied_run)
    code, output = carp.run(*words)
    assert code == 0, output
    assert "finished: all 20 steps" in output
    after = snapshot(copied_run)
    assert before.pop("plots.png")[:8] == after.pop("plots.png")[:8] == b"\x89PNG\r\n\x1a\n"
    assert after == before


def test_a_folder_that_is_no_run_is_refused_and_left_untouched(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    (photos / "holiday.txt").write_text("precious")
    error = one_error(*carp.run("train", images, "--recipe", recipe, "--out", photos))
    assert str(photos) in error
    assert "--out" in error
    assert snapshot(photos) == {"holiday.txt": b"precious"}


def test_a_file_in_the_place_of_the_run_folder_is_refused(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    error = one_error(*carp.run("train", images, "--recipe", recipe, "--out", file))
    assert str(file) in error
    assert file.read_text() == "precious"


def test_a_second_process_is_refused_while_the_first_trains(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out]
    first = carp.start(*words)
    wait_until(lambda: steps_of(out), "a checkpoint")
    first.send(signal.SIGSTOP)  # so that it cannot finish meanwhile
    try:
        error = one_error(*carp.run(*words))
        assert "another process" in error
        assert str(out) in error
    finally:
        first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    _, output = carp.run(*words, die_at=3)  # the lock of a killed process does not remain
    assert "another process" not in output


def test_a_mistake_found_before_the_first_step_can_be_mended_in_the_same_folder(tmp_path: Path) -> None:
    """The message says what to set; it must be possible to do what it says."""
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1)
    with pytest.raises(carp_package.errors.CarpError, match="batch_size is 128"):
        carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, batch_size=128)
    carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, batch_size=64)
    assert steps_of(tmp_path / "run") == [1]


def test_a_corrupt_image_can_be_replaced_and_the_same_command_run_again(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1)
    data = write_images(tmp_path / "images", tiny_images())
    content = (data / "007.png").read_bytes()
    (data / "007.png").write_bytes(content[:1000])
    with pytest.raises(carp_package.errors.BadImagesError, match=r"007\.png"):
        carp_package.train(data, tmp_path / "run", recipe, quiet=True, max_bad_share=0)
    (data / "007.png").write_bytes(content)
    carp_package.train(data, tmp_path / "run", recipe, quiet=True)
    assert steps_of(tmp_path / "run")[-1] == 4
    assert not (tmp_path / "run" / "quarantine.jsonl").exists()
