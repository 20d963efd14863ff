"""The committed results of the ablations are what the documentation shows."""

import csv
from pathlib import Path

import pytest
from benchmarks.ablation_plots import read_study

from carp.report.study_plot import plot_study
from carp.studies.ablations import ABLATIONS

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_row_is_read_and_every_plot_is_shown(name: str, tmp_path: Path) -> None:
    path = REPOSITORY / "benchmarks/results/ablations" / f"{name}.csv"
    study = read_study(ABLATIONS[name], path)
    rows = list(csv.DictReader(path.open()))
    assert sum(len(row.results) for row in study.rows) == len(rows)
    for row in rows:
        (found,) = [one for one in study.rows if (one.point.value, one.point.variant) == (row["value"], row["variant"])]
        paper = {"": row["paper"], "student": row["paper_student"], "teacher": row["paper_teacher"]}
        assert study.published_for(found.point) == {branch: float(text) for branch, text in paper.items() if text}
    plot_study(study, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert (REPOSITORY / f"docs/images/ablation-{name}.png").exists()
    assert f"images/ablation-{name}.png" in (REPOSITORY / "docs/results.md").read_text()
