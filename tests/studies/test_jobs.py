"""The jobs of a study: each is done once, whoever does it."""

import subprocess
import sys
from pathlib import Path

import pytest

from carp.errors import CheckpointError, DataError
from carp.files.lock import held
from carp.studies.job_folder import newest_step, tidy
from carp.studies.job_result import JobResult, Measured, read_all, read_job_result
from carp.studies.jobs import JobQueue, estimate
from carp.studies.points import Job, Point, all_jobs
from carp.studies.study_folder import STUDY, in_turn, lock_of, open_study

JOBS = all_jobs([Point("8", place=8), Point("32", place=32, cost=3)], [0, 1])


def finish(job: Job, folder: Path, *, seconds: float | None = 10.0, kept: bool = False) -> JobResult:
    measured = Measured(accuracies={"student": 0.5}, verdict="healthy", seconds=seconds)
    result = JobResult.of("toy", job, measured, kept=kept, versions={"carp": "1"})
    folder.mkdir(parents=True, exist_ok=True)
    result.write(folder)
    return result


class Record:
    """Does jobs by writing their results down."""

    def __init__(self, folder: Path) -> None:
        self.queue = JobQueue(folder, JOBS, self.work, self.lines_append, self.report, label="size")
        self.done: list[str] = []
        self.lines: list[str] = []
        self.reports: list[int] = []

    def lines_append(self, line: str) -> None:
        self.lines.append(line)

    def work(self, job: Job, place: Path) -> None:
        self.done.append(job.name)
        finish(job, place)

    def report(self) -> None:
        self.reports.append(len(read_all(self.queue.folder)))


def test_every_job_once_in_order_with_a_report_after_each(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.queue.run()
    assert record.done == ["8-seed0", "32-seed0", "8-seed1", "32-seed1"]
    assert record.reports == [1, 2, 3, 4]
    assert record.lines[0] == "job 1 of 4: size 8, seed 0"
    assert record.lines[2] == "job 3 of 4: size 8, seed 1, about 20 s left for 2"
    again = Record(tmp_path)
    again.queue.run()
    assert (again.done, again.lines) == ([], [])


def test_an_error_leaves_the_other_results_and_frees_the_job(tmp_path: Path) -> None:
    record = Record(tmp_path)
    fails = [True]

    def work(job: Job, place: Path) -> None:
        if job.name == "32-seed0" and fails.pop():
            raise DataError("the disk is full")
        record.work(job, place)

    record.queue.work = work
    with pytest.raises(DataError):
        record.queue.run()
    assert record.done == ["8-seed0"]
    fails.append(False)
    record.queue.run()
    assert record.done == ["8-seed0", "32-seed0", "8-seed1", "32-seed1"]


HOLD = """
import sys, time
from pathlib import Path
from carp.files.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_job_that_another_process_holds_is_left_to_it_and_taken_over_when_that_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(lock_of(tmp_path, "8-seed0"))]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        record = Record(tmp_path)
        record.queue.run()
        assert record.done == ["32-seed0", "8-seed1", "32-seed1"]
        assert f"8-seed0 is left to another process: process {other.pid}" in record.lines[-1]
        assert list(record.queue.elsewhere) == ["8-seed0"]
    finally:
        other.kill()
        other.communicate()
    record.queue.run()
    assert record.done[-1] == "8-seed0"
    assert record.queue.elsewhere == {}


def test_a_job_that_ends_elsewhere_while_it_is_looked_at_is_not_repeated(tmp_path: Path) -> None:
    """Another process finishes it between the first look and the lock."""
    record = Record(tmp_path)
    finish(JOBS[0], tmp_path / JOBS[0].name)
    looks = []

    def late(folder: Path) -> JobResult | None:
        looks.append(folder.name)
        return None if looks.count(folder.name) == 1 else read_job_result(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("carp.studies.jobs.read_job_result", late)
        record.queue.run()
    assert "8-seed0" not in record.done
    assert len(record.done) == 3
    with held(lock_of(tmp_path, "8-seed0")):  # and its lock was released
        pass


def test_time_left_follows_from_the_same_point_or_from_the_cost(tmp_path: Path) -> None:
    results = [finish(JOBS[0], tmp_path / "a", seconds=20.0)]
    assert estimate(JOBS[1:], [], JOBS) is None
    assert estimate(JOBS[1:], results, JOBS) == 60 + 20 + 60  # the other point costs three times as much
    results.append(finish(JOBS[1], tmp_path / "b", seconds=30.0))
    assert estimate(JOBS[2:], results, JOBS) == 20 + 30
    results.append(finish(JOBS[2], tmp_path / "c", seconds=None))  # resumed at its end
    assert estimate(JOBS[3:], results, JOBS) == 30


def test_times_of_a_slower_machine_are_rescaled(tmp_path: Path) -> None:
    for job in JOBS[:2]:  # elsewhere, where a job of point 8 takes 100 s and one of point 32 takes 300 s
        finish(job, tmp_path / job.name, seconds=100.0 * job.point.cost)
    record = Record(tmp_path)
    record.queue.run()  # a job of point 8 takes 10 s here
    assert record.lines == [
        "job 3 of 4: size 8, seed 1, about 7 min left for 2",
        "job 4 of 4: size 32, seed 1, about 30 s left for 1",
    ]


def test_another_variant_of_the_same_value_is_a_better_guide_than_other_values(tmp_path: Path) -> None:
    jobs = all_jobs([Point("a", "first"), Point("a", "second"), Point("b", "first")], [0])
    results = [finish(jobs[0], tmp_path / "a", seconds=10.0), finish(jobs[2], tmp_path / "b", seconds=90.0)]
    assert estimate([jobs[1]], results, jobs) == 10


def test_a_job_that_is_not_ready_waits_for_the_others(tmp_path: Path) -> None:
    record = Record(tmp_path)
    first, *others = [job.name for job in JOBS]
    record.queue.ready = lambda job: job.name != first or set(others) <= set(record.done)
    record.queue.run()
    assert record.done == [*others, first]


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    finish(JOBS[0], tmp_path / "8-seed0")
    (tmp_path / "8-seed0" / "job.json").write_text('{"value": ')
    with pytest.raises(DataError, match=r"8-seed0/job\.json: it is damaged\. Remove it"):
        read_all(tmp_path)


def test_what_a_killed_process_left_is_removed_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    for job, kept in ((JOBS[0], False), (JOBS[1], True)):
        finish(job, tmp_path / job.name, kept=kept)
        (tmp_path / job.name / "checkpoints" / "step-00000004").mkdir(parents=True)
        (tmp_path / job.name / "checkpoints" / "step-00000012-epoch-3").mkdir()  # one that keep_epochs kept
        assert newest_step(tmp_path / job.name) == 12
    tidy(tmp_path)
    assert newest_step(tmp_path / JOBS[0].name) == 0
    assert newest_step(tmp_path / JOBS[1].name) == 12


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    common = {"settings": {"lr": [1.0, 0.1], "epochs": 5}, "data": {"images": 10}, "test": None}
    open_study(tmp_path / "new", common, write=False)
    assert not (tmp_path / "new").exists()
    open_study(tmp_path, common)
    open_study(tmp_path, {**common, "settings": {**common["settings"], "of a later version": 1}})  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match=r"other settings \(lr: \[1\.0, 0\.1\] -> 2; images: 10 -> 11\)"):
        open_study(tmp_path, {"settings": {"lr": 2, "epochs": 5}, "data": {"images": 11}, "test": None})
    with pytest.raises(CheckpointError, match="test: None -> "):
        open_study(tmp_path, {**common, "test": {"images": 3}}, write=False)
    (tmp_path / STUDY).write_text("[1]")
    with pytest.raises(CheckpointError, match=r"study\.json is damaged"):
        open_study(tmp_path, common)


def test_processes_write_in_turn(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(lock_of(tmp_path, "study"))]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "held\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("carp.studies.study_folder._PATIENCE", 0.2)
        with pytest.raises(CheckpointError, match=f"process {other.pid}"), in_turn(tmp_path):
            pytest.fail("it was held twice")
    other.communicate("\n")
    with in_turn(tmp_path):
        pass
