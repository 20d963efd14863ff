"""A disk that fills up: one clear line, and everything that was saved is still there."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carp.runs import checkpoint
from tests.faults.conftest import Server
from tests.helpers import assert_same_run, steps_of


def one_error(code: int, output: str) -> str:
    assert code == 2, output
    assert "Traceback" not in output
    assert "Exception ignored" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    return line


@pytest.fixture
def stopped_run(short_run: Path, tmp_path: Path) -> Path:
    """A run of 20 steps as it was after step 10."""
    run = Path(shutil.copytree(short_run, tmp_path / "run"))
    for step in (15, 20):
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
    return run


def test_a_checkpoint_that_does_not_fit_leaves_the_previous_ones_intact(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, short_run: Path
) -> None:
    words: list[object] = ["train", images, "--recipe", recipe, "--out", stopped_run, "epochs=5"]
    size = (stopped_run / "checkpoints" / "step-00000010" / "tensors.safetensors").stat().st_size
    error = one_error(*carp.run(*words, file_limit=size // 2))
    assert "step-00000015" in error
    assert "too large" in error  # the reason that the system gives
    assert "same command" in error
    assert steps_of(stopped_run) == [10]
    assert checkpoint.load(stopped_run / "checkpoints" / "step-00000010").step == 10
    assert not list((stopped_run / "checkpoints").glob(".unfinished-*"))
    code, output = carp.run(*words)
    assert code == 0, output
    assert_same_run(stopped_run, short_run)


def test_metrics_that_do_not_fit_are_told_in_one_line(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, short_run: Path
) -> None:
    words: list[object] = ["train", images, "--recipe", recipe, "--out", stopped_run, "epochs=5"]
    error = one_error(*carp.run(*words, file_limit=3000))
    assert "metrics.jsonl" in error
    assert steps_of(stopped_run) == [10]
    code, output = carp.run(*words)
    assert code == 0, output
    assert_same_run(stopped_run, short_run)


def test_a_plot_that_does_not_fit_is_told_in_one_line(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(short_run, tmp_path / "run"))
    (run / "plots.png").unlink()
    code, output = carp.run("train", images, "--recipe", recipe, "--out", run, "epochs=5", file_limit=8000)
    assert "Traceback" not in output
    assert "plots.png" in output
    assert code in {0, 2}
    assert steps_of(run)[-1] == 20


def test_a_new_run_that_cannot_be_written_says_so_and_can_be_started_later(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    words: list[object] = ["train", images, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1"]
    error = one_error(*carp.run(*words, file_limit=400))
    assert str(tmp_path / "run") in error
    code, output = carp.run(*words)
    assert code == 0, output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"mounting is not permitted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_stops_the_run_with_one_line_and_room_lets_it_go_on(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, short_run: Path, small_disk: Path
) -> None:
    out = Path(shutil.copytree(stopped_run, small_disk / "run"))
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=5"]
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    error = one_error(*carp.run(*words))
    assert "No space left on device" in error
    assert "same command" in error
    assert steps_of(out) == [10]
    assert checkpoint.load(out / "checkpoints" / "step-00000010").step == 10
    filler.unlink()
    code, output = carp.run(*words)
    assert code == 0, output
    assert_same_run(out, short_run)
