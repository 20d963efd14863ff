"""The referee: all methods have the same effort, jobs are not repeated, and the test images come last."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

from benchmarks.compare.__main__ import main
from benchmarks.compare.comparison import common_settings
from benchmarks.compare.effort import Effort, choose
from benchmarks.compare.images import ComparedImages
from benchmarks.compare.measures import measured
from benchmarks.compare.methods import find_method
from benchmarks.compare.page import write_comparison
from benchmarks.compare.summary import read_results
from benchmarks.compare.tables import jobs_csv

from carp.console.progress import Display
from carp.errors import CheckpointError, ConfigError
from carp.evaluation.nearest_neighbours import knn_accuracy
from carp.studies.job_result import JobResult, read_job_result
from carp.studies.points import Job
from tests.benchmarks.compared import (
    BATCH,
    NAMES,
    SIZE,
    SMALL,
    NeverOpened,
    coloured,
    comparison,
    copy_of,
    stored,
    training,
)


def test_test_images_are_opened_after_the_choice_and_finished_jobs_are_not_repeated(
    finished: tuple[Path, Any], tmp_path: Path
) -> None:
    out, test = finished
    assert {f"{name}-trial-{n}-seed0" for name in NAMES for n in range(2)} <= set(test.done)
    before = {path: path.read_text() for path in out.rglob("job.json")}
    assert len(before) == 8 + 3
    again = comparison(copy_of(out, tmp_path) / "colours", NeverOpened())
    assert again.run(NAMES, Display(quiet=True)) == 0
    assert {path: path.read_text() for path in out.rglob("job.json")} == before


def test_trials_never_open_test_images_and_have_the_same_bits(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out, _ = finished
    hidden = comparison(tmp_path / "colours", NeverOpened())
    for number in range(2):
        job = hidden.effort.trial("byol", number)
        made = hidden.do(job, tmp_path / job.name)
        assert made.accuracies == stored(out, job).accuracies
        assert set(made.accuracies) == {"student", "teacher"}
        assert not made.measures
    final = Job(replace(job.point, variant="chosen"), 1)
    with pytest.raises(AssertionError, match="were opened"):
        hidden.do(final, tmp_path / final.name)


def test_ideas_are_chosen_without_test_images_and_one_may_be_added_later(small_methods: None, tmp_path: Path) -> None:
    plan = replace(comparison(tmp_path / "ideas", NeverOpened(), seeds=(1,)), tests=False)
    assert plan.run(["simclr"], Display(quiet=True)) == 3 + 2  # with the baselines
    assert plan.run(NAMES, Display(quiet=True)) == 3
    final = read_job_result(tmp_path / "ideas" / plan.effort.jobs(["byol"])[-1].name)
    assert final is not None
    assert set(final.measures) == {"linear", "nmi"}
    jobs = list(csv.DictReader(io.StringIO(jobs_csv(read_results(tmp_path)))))
    assert {row["judged_by"] for row in jobs} == {"held-out"}
    page = tmp_path / "page.md"
    write_comparison(tmp_path, page)
    assert "no test images were opened" in page.read_text()
    assert "## Summary" not in page.read_text()
    # A method that is defined otherwise than in its finished jobs is refused
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckpointError, match="length"):
        patch.setattr(find_method("byol"), "length", 0.5)
        plan.run(NAMES, Display(quiet=True))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckpointError, match="constants"):
        patch.setattr(find_method("byol"), "constants", {"frozen": 0.5})
        plan.run(NAMES, Display(quiet=True))


def test_a_final_job_waits_for_all_trials_of_its_method(finished: tuple[Path, Any], tmp_path: Path) -> None:
    folder = copy_of(finished[0], tmp_path) / "colours"
    effort = Effort(2, (1, 2))
    final = effort.jobs(["simclr"])[-1]
    assert effort.is_ready(folder, final)
    (folder / "simclr-trial-1-seed0" / "job.json").unlink()
    assert not effort.is_ready(folder, final)
    assert effort.is_ready(folder, effort.jobs(["byol"])[-1])


def test_a_trial_that_diverges_counts_and_is_not_chosen(finished: tuple[Path, Any], tmp_path: Path) -> None:
    def tried(name: str, **settings: float) -> JobResult:
        job = Effort().trial(name, 1)
        wild = replace(job, point=replace(job.point, settings={**job.point.settings, **SMALL, **settings}))
        return comparison(tmp_path / "colours", NeverOpened()).do(wild, tmp_path / name)

    failed = tried("simclr", temperature=0.0)
    assert (failed.verdict, failed.accuracies) == ("failed", {})
    assert "temperature" in failed.notes[0]
    made = tried("vicreg", variance=1e39)
    assert (made.verdict, made.accuracies) == ("diverged", {})
    assert read_job_result(tmp_path / "vicreg") == made
    sound = stored(finished[0], Effort().trial("simclr", 0))
    assert choose([failed, sound]) == sound
    assert choose([made, made.model_copy(update={"place": 0.0})]).place == 0


def test_baselines_are_the_initial_encoder_and_the_pixels(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out = finished[0]
    (dataset,) = read_results(out)
    untrained, pixels = dataset.baselines
    assert [len(row.finals) for row in dataset.baselines] == [2, 1]
    bank, queries = coloured(5 * BATCH), coloured(24, seed=1)
    assert bank.labels is not None
    assert queries.labels is not None
    flat = [source.images.reshape(len(source), -1).astype(np.float32) / 255 for source in (bank, queries)]
    expected = knn_accuracy(*(array for pair in ((flat[0], bank.labels), (flat[1], queries.labels)) for array in pair))
    assert pixels.finals[0].accuracies["student"] == pytest.approx(expected, abs=1 / 24)
    initial = training("simclr", bank, seed=1).method.encoders()
    found = measured(initial, SIZE, bank, queries, ["knn"])["knn"]["student"]
    assert untrained.finals[0].accuracies["student"] == found
    images = ComparedImages(bank, NeverOpened(), SIZE, held_out=BATCH)
    held_out = measured(initial, SIZE, images.for_trials, images.judging, ["knn"])["knn"]
    assert untrained.finals[0].measures["held_out"] == held_out
    write_comparison(copy_of(out, tmp_path))
    table = (tmp_path / "table.md").read_text()
    assert table.index("| BYOL") < table.index("| untrained encoder") < table.index("| raw pixels")


def test_a_longer_budget_takes_the_settings_of_another_comparison(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out = copy_of(finished[0], tmp_path / "out")
    short = comparison(out / "colours", coloured(24, seed=1))
    longer = replace(short, folder=out / "colours-long", common={**short.common, "epochs": 2}, choices="colours")
    assert longer.run(NAMES, Display(quiet=True)) == 4 + 3  # no trials
    first, second = write_comparison(out)
    assert (first.name, second.name, second.trials) == ("colours", "colours-long", ())
    for before, after in zip(first.methods, second.methods, strict=True):
        assert after.chosen.settings == before.chosen.settings
        assert [final.settings for final in after.finals] == [after.chosen.settings] * 2
        assert after.finals[0].steps == 2 * before.finals[0].steps
    text = (out / "table.md").read_text().split("## colours-long")[1]
    assert "those that the trials of colours chose" in text
    assert "| trials |" not in text
    with pytest.raises(ConfigError, match="--choices colours has not finished the trials of moco"):
        longer.run(["moco"], Display(quiet=True))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckpointError, match="length"):
        patch.setattr(find_method("byol"), "length", 0.5)
        longer.run(NAMES, Display(quiet=True))


def test_a_comparison_of_trials_only_chooses_for_a_longer_one(small_methods: None, tmp_path: Path) -> None:
    short = replace(comparison(tmp_path / "short", NeverOpened()), trials_only=True)
    assert short.run(NAMES, Display(quiet=True)) == len(NAMES) * short.effort.trials  # no baselines, no final jobs
    (only,) = write_comparison(tmp_path)
    assert all(method.chosen is not None and not method.finals for method in only.methods)
    assert only.missing == ()
    assert "still to run" not in (tmp_path / "table.md").read_text()
    tested = coloured(24, seed=1)
    longer = comparison(tmp_path / "long", tested)
    longer = replace(longer, common={**longer.common, "epochs": 2}, choices="short")
    assert longer.run(NAMES, Display(quiet=True)) == 4 + 3
    (tmp_path / "short" / "simclr-trial-1-seed0" / "job.json").unlink()
    (tmp_path / "long" / "study.json").unlink()
    write_comparison(tmp_path)
    assert "1 trial still to run" in (tmp_path / "table.md").read_text()


def test_settings_of_another_benchmark_need_one_trial(tmp_path: Path) -> None:
    plan = replace(comparison(tmp_path / "theirs", NeverOpened(), trials=1), trials_only=True)
    assert plan.run(["lightly-simclr"], Display(quiet=True)) == 1
    (only,) = write_comparison(tmp_path)
    assert (only.missing, only.not_begun) == ((), ())  # CARP and the others are no part of it
    assert "| SimCLR, lightly's settings | 1 | 0 | trial 0 |" in (tmp_path / "table.md").read_text()


def test_images_of_a_group_are_held_out_together() -> None:
    source = coloured(60)
    whole = ComparedImages(source, NeverOpened(), SIZE, held_out=10, group=r"\[\d")  # the first digit of the number
    held = {int(np.flatnonzero((source.images == image).all(axis=(1, 2, 3)))[0]) for image in whole.judging.images}
    rest = {int(np.flatnonzero((source.images == image).all(axis=(1, 2, 3)))[0]) for image in whole.for_trials.images}
    assert held.isdisjoint(rest)
    assert len(held) >= 10
    assert held | rest == set(range(60))
    assert {str(index)[0] for index in held}.isdisjoint(str(index)[0] for index in rest)
    alone = ComparedImages(source, NeverOpened(), SIZE, limit=20)
    assert (len(alone.for_trials), len(alone.judging), len(alone.for_finals)) == (20, 12, 20)
    with pytest.raises(ConfigError, match="one group"):
        _ = ComparedImages(source, NeverOpened(), SIZE, group="colours").judging
    with pytest.raises(ConfigError, match="matches nothing"):
        _ = ComparedImages(source, NeverOpened(), SIZE, group="xyz").judging


def test_one_setting_can_be_tried_without_a_comparison(
    small_methods: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "try",
        "--train",
        "embedded:shapes",
        "--test",
        "nowhere",
        "--size",
        "16",
        "--epochs",
        "1",
        "--images",
        "128",
    ]
    words += ["--methods", "simclr", "--trial"]
    assert main([*words, "lr=0.7"]) == 0
    assert re.search(
        r"^simclr, lr 0.7, projector_hidden 16, temperature 0.5: student [\d.]+$", capsys.readouterr().out, re.M
    )
    assert main([*words, "hue=0"]) == 0  # not searched
    assert "temperature 0.5, hue 0: student" in capsys.readouterr().out
    assert main([*words, "queue=3"]) == 2
    error = capsys.readouterr().err
    assert "queue is not a setting of simclr, received queue=…" in error
    assert "lr, projector_hidden, temperature, optimiser" in error
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = ["--train", "embedded:shapes", "--test", "embedded:shapes-test"]
    words = ["run", *data, "--name", "x", "--out", str(tmp_path)]
    for more, found in (
        (["--seeds", "0,1"], "--seeds must be above 0"),
        (["--seeds", "one"], "--seeds must be whole numbers"),
        (["--trials", "0"], "--trials must be at least 1"),
        (["--set", "lr=1"], "lr is not a setting that all methods share"),
        (["--set", "flipp=0"], "Did you mean 'flip'"),
        (["--test", "nowhere"], "no test images at nowhere"),
        (["--size", "224"], "at most 64"),
        (["--choices", "y"], "there is no comparison y in"),
    ):
        assert main([*words, *more]) == 2
        message = capsys.readouterr().err
        assert found in message
        assert message.count("\n") == 1
    assert main(["table", "--out", str(tmp_path / "none")]) == 2
    assert not list(tmp_path.iterdir())
    assert common_settings(32, 1, 8, {"flip": 0})["flip"] == 0
