"""Draws the ablations of docs/results.md from the committed results, and prints how far they agree with the paper.

    python -m benchmarks.ablation_plots [--results benchmarks/results/ablations] [--out docs/images]

The results are the files table.csv of `carp ablate`, one per ablation; docs/results.md has the commands. Rows of
several machines may be joined in one file, which `carp ablate` would not do.
"""

import argparse
import csv
import math
from pathlib import Path

from carp.report.study_plot import plot_study
from carp.studies.ablations import ABLATIONS, Ablation
from carp.studies.agreement import agreement_lines
from carp.studies.job_result import JobResult, Measured
from carp.studies.points import Job
from carp.studies.published import published_ablations
from carp.studies.study import BRANCHES, Study, rows_of

EPOCHS, BLOCK_SIZE = 2, 512  # of all runs, except where they are what is varied


def read_study(ablation: Ablation, path: Path) -> Study:
    """Read the table of an ablation."""
    rows = list(csv.DictReader(path.open()))
    points = {
        (point.value, point.variant): point
        for point in ablation.points([row["value"] for row in rows], None, epochs=EPOCHS)
    }
    results = []
    for row in rows:
        point = points[row["value"], row["variant"]]
        measured = Measured(
            accuracies={branch: float(row[branch]) / 100 for branch in BRANCHES if row[branch]},
            kl_to_uniform=float(row["kl_to_uniform"]),
            kl_limit=math.log(point.settings.get("block_size", BLOCK_SIZE)),
            verdict=row["verdict"],
        )
        job = Job(point, int(row["seed"]))
        results.append(JobResult.of(ablation.name, job, measured, kept=False, versions={}))
    return Study(
        name=ablation.name,
        title=ablation.title,
        axis=ablation.axis,
        scale=ablation.scale,
        folder=path.parent,
        rows=rows_of(results, list(ablation.variants)),
        published=published_ablations().get(ablation.name),
    )


def main() -> None:
    """Draw all plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/ablations"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    for name, ablation in ABLATIONS.items():
        study = read_study(ablation, arguments.results / f"{name}.csv")
        plot_study(study, arguments.out / f"ablation-{name}.png")
        print(f"{name}:", *agreement_lines(study), sep="\n  ")


if __name__ == "__main__":
    main()
