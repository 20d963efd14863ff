"""A process that is killed, hangs or fails: all end or go on together, and one of them says why."""

from pathlib import Path

import pytest

from carp.runs import checkpoint
from tests.helpers import assert_same_run, steps_of
from tests.processes.conftest import own_lines, torchrun


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_nothing_differs_and_a_hang_is_told(folder: Path) -> None:
    """In one start of the processes, as each costs seconds; runs.faults checks the message about the hang."""
    code, output = torchrun(2, "-m", "tests.processes.runs", "faults", folder, options=("--max-restarts=1",))
    assert code == 0, output
    assert_same_run(folder / "killed", folder / "undisturbed")


@pytest.mark.slow
def test_a_full_disk_of_the_first_process_stops_all_and_is_told_once(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, output = torchrun(
        2, "-m", "tests.processes.runs", "command_line", folder, 20_000, "", "--out", out, "epochs=3"
    )
    assert code != 0
    (line,) = own_lines(output)
    assert "cannot write the checkpoint" in line
    assert output.count("Traceback") == 1, "torchrun's own, and none of ours"
    assert "ChildFailedError" in output.rpartition("Traceback")[2]
    assert steps_of(out) == [5]
    assert checkpoint.load(out / "checkpoints" / "step-00000005").step == 5, "the one before is whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "told"),
    [("DataError", "an error of one process"), ("killed", "lost another process, which was killed")],
)
def test_an_error_of_one_process_is_told_once(folder: Path, tmp_path: Path, error: str, told: str) -> None:
    out = tmp_path / "run"
    code, output = torchrun(2, "-m", "tests.processes.runs", "command_line", folder, 0, error, "--out", out)
    assert code != 0
    (line,) = own_lines(output)
    assert told in line
    assert steps_of(out) == [5]
    assert checkpoint.load(out / "checkpoints" / "step-00000005").step == 5


@pytest.mark.slow
def test_a_bug_in_every_process_shows_one_traceback(folder: Path, tmp_path: Path) -> None:
    words = ["-m", "tests.processes.runs", "command_line", folder, 0, "bug", "--out", tmp_path / "run"]
    code, output = torchrun(2, *words)
    assert code != 0
    assert output.count("ZeroDivisionError: bug") == 1
    assert not own_lines(output)
