"""The tables and the page of a comparison: what they contain, and the results that they refuse."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

from benchmarks.compare.effort import Effort
from benchmarks.compare.measures import KNN, MEASURES
from benchmarks.compare.methods import METHODS
from benchmarks.compare.page import ranges_section, write_comparison
from benchmarks.compare.summary import read_results
from benchmarks.compare.tables import summary_table

from carp.errors import DataError
from carp.studies.points import Job
from tests.benchmarks.compared import NAMES, copy_of, stored


def test_the_page_in_the_documentation_has_the_ranges_of_the_code() -> None:
    assert ranges_section() in (Path(__file__).parents[2] / "docs/comparison.md").read_text()


def test_tables_plot_and_page(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out = copy_of(finished[0], tmp_path / "out")
    (dataset,) = write_comparison(out, tmp_path / "docs" / "comparison.md")
    assert [row.name for row in dataset.methods] == ["simclr", "byol"]
    table = (out / "table.md").read_text()
    finals = [stored(out, Job(Effort().jobs(["byol"])[-1].point, seed)) for seed in (1, 2)]
    mean = 100 * float(np.mean([final.accuracies["teacher"] for final in finals]))
    assert f"{mean:.1f} ± " in next(line for line in table.splitlines() if line.startswith("| BYOL"))
    assert "| 2 | 0 | trial " in table
    values = [100 * max(trial.accuracies.values()) for trial in dataset.methods[1].trials]
    assert f"| {min(values):.1f} to {max(values):.1f} |" in table
    assert "Preliminary" not in table
    every = list(csv.DictReader((out / "table.csv").open()))
    assert {row["measure"] for row in every} == {"knn", "linear", "nmi"}
    rows = [row for row in every if row["method"] in NAMES]
    assert all(0 <= float(row["mean"]) <= 100 and row["trials"] == "2" and row["seeds"] == "2" for row in rows)
    jobs = list(csv.DictReader((out / "trials.csv").open()))
    assert sorted(row["judged_by"] for row in jobs) == ["held-out"] * 4 + ["test"] * (4 + 3)
    assert json.loads(jobs[0]["settings"])["temperature"] == 0.5
    page = (tmp_path / "docs" / "comparison.md").read_text()
    assert (tmp_path / "docs/images/comparison-colours.png").stat().st_size > 1000
    assert "images/comparison-colours.png" in page
    assert [line for line in page.splitlines() if line.endswith(" | colours |")] == [
        f"| {title} | colours |" for title in MEASURES.values()
    ]
    assert all(method.title in page for method in METHODS.values())


def test_unequal_trials_are_refused(finished: tuple[Path, Any], tmp_path: Path) -> None:
    def changed(change: Callable[[Path], object], name: str) -> Path:
        out = copy_of(finished[0], tmp_path / name)
        change(out / "colours")
        return out

    fewer = changed(lambda folder: (folder / "byol-trial-1-seed0" / "job.json").unlink(), "fewer")
    with pytest.raises(DataError, match=r"byol has 1 trials .* every method has 2"):
        read_results(fewer)

    def add(folder: Path) -> None:
        trial = Effort().trial("byol", 2)
        made = stored(finished[0], Effort().trial("byol", 1)).model_copy(
            update={"variant": trial.point.variant, "settings": dict(trial.point.settings), "place": 2.0}
        )
        (folder / trial.name).mkdir()
        made.write(folder / trial.name)

    with pytest.raises(DataError, match=r"byol has 3 trials .* byol-trial-2-seed0"):
        read_results(changed(add, "more"))

    def swap(folder: Path) -> None:
        final = stored(finished[0], Effort(2, (1, 2)).jobs(["byol"])[-1])
        final.model_copy(update={"settings": {**final.settings, "lr": 7.0}}).write(folder / final.job.name)

    with pytest.raises(DataError, match="another setting than its trials chose"):
        read_results(changed(swap, "other"))


def test_the_table_says_how_many_seeds_a_method_has(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out = copy_of(finished[0], tmp_path)
    (out / "colours" / "byol-chosen-seed2" / "job.json").unlink()
    (dataset,) = write_comparison(out)
    assert [len(row.finals) for row in dataset.methods] == [2, 1]
    assert [job.name for job in dataset.missing] == ["byol-chosen-seed2"]
    assert "1 job still to run (BYOL)" in (out / "table.md").read_text()
    line = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith("| BYOL"))
    assert "±" not in line
    assert line.split(" | ")[-2] == "1"
    (out / "colours" / "byol-chosen-seed1" / "job.json").unlink()
    (dataset,) = read_results(out)
    assert [row.name for row in dataset.tested] == ["simclr"]
    assert [row.name for row in dataset.methods] == ["simclr", "byol"]


def test_the_summary_has_the_branch_that_the_choice_prefers(finished: tuple[Path, Any], tmp_path: Path) -> None:
    out = copy_of(finished[0], tmp_path)
    (out / "colours" / "byol-chosen-seed2" / "job.json").unlink()
    final = stored(out, Job(Effort().jobs(["byol"])[-1].point, 1))
    final.model_copy(update={"accuracies": {"student": 0.25, "teacher": 0.999}}).write(out / "colours" / final.job.name)
    chosen = read_results(out)[0].methods[1].chosen
    for better, expected in (("student", "25.0"), ("teacher", "99.9")):
        accuracies = {branch: 0.995 if branch == better else 0.5 for branch in chosen.accuracies}
        chosen.model_copy(update={"accuracies": accuracies}).write(out / "colours" / chosen.job.name)
        head, _, simclr, byol, *baselines = summary_table(read_results(out), KNN).splitlines()
        assert head == "| k-NN | colours |"
        assert byol.replace("*", "") == f"| BYOL | {expected} (1 seed) |"
        assert ("**" in simclr, "**" in byol) == (better == "student", better == "teacher")
        assert " ± " in simclr
        assert "seed" not in simclr
        assert [line.split(" | ")[0] for line in baselines] == ["| untrained encoder", "| raw pixels"]


def test_the_summary_of_several_datasets_has_gaps(finished: tuple[Path, Any]) -> None:
    (dataset,) = read_results(finished[0])
    first, second = dataset.methods
    only = [replace(dataset, methods=(first,)), replace(dataset, name="other", methods=(second,))]
    simclr, byol = summary_table(only, KNN).splitlines()[2:4]
    assert (simclr.split(" | ")[2], byol.split(" | ")[1]) == ("– |", "–")
    assert "**" not in simclr + byol  # nothing to be compared with
