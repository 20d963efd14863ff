"""The table of a study: one row per point, our numbers next to the published ones."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table as ScreenTable
from rich.text import Text

from carp.console.printable import printable
from carp.console.quantities import counted, duration
from carp.console.safe_console import SafeConsole
from carp.report.tables.screen import print_in_parts
from carp.studies.agreement import agreement_lines
from carp.studies.study import BRANCHES, Mean, Study, StudyRow

_MISSING = "–"
_FEW = 3  # names in a note


@dataclass(frozen=True)
class StudyColumn:
    """A heading, the text of every row, and whether the best value of each variant is marked."""

    heading: str
    text: Callable[[StudyRow], str]
    number: Callable[[StudyRow], float | None] | None = None
    """The number that determines the best row; None if the column is not compared."""


def print_study(study: Study) -> None:
    """Print the table, the comparison with the paper and the notes to standard output."""
    print_in_parts(_columns(study), lambda columns: _screen(study, columns))
    for line in [*agreement_lines(study), *(f"note: {note}" for note in notes_of(study))]:
        SafeConsole(highlight=False, soft_wrap=True).print(printable(line), markup=False)


def study_markdown(study: Study) -> str:
    """Return the table, the comparison and the notes as GitHub Markdown."""
    columns = _columns(study)
    lines = [f"**{study.title}: k-NN top-1 (k = 20), %**", ""]
    lines += [_bar([column.heading for column in columns]), _bar(["---:"] * len(columns))]
    for row in study.rows:
        lines.append(_bar([f"**{c.text(row)}**" if _is_best(study, c, row) else c.text(row) for c in columns]))
    lines += ["", *(f"- {line}" for line in [*agreement_lines(study), *notes_of(study)])]
    return "\n".join(lines) + "\n"


def study_csv(study: Study) -> str:
    """Return one line per job, in full precision, for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["value", "variant", "seed", *BRANCHES, "paper", "paper_student", "paper_teacher"]
    writer.writerow([*head, "kl_to_uniform", "verdict", "seconds", "steps", "resumed_at"])
    for row in study.rows:
        paper = study.published_for(row.point)
        for job in row.results:
            shares = [_percent(job.accuracies.get(branch)) for branch in BRANCHES]
            published = [paper.get(branch, "") for branch in ("", *BRANCHES)]
            rest = [_or_empty(job.kl_to_uniform), job.verdict, _or_empty(job.seconds), job.steps, job.resumed_at]
            writer.writerow([row.point.value, row.point.variant, job.seed, *shares, *published, *rest])
    return text.getvalue()


def notes_of(study: Study) -> list[str]:
    """Return remarks on the table."""
    notes = []
    if study.missing:
        more = " …" if len(study.missing) > _FEW else ""
        notes.append(f"{counted(len(study.missing), 'job')} not done yet: {', '.join(study.missing[:_FEW])}{more}")
    lengths = {row.point.value: row.point.published_as for row in study.rows if study.published_for(row.point)}
    if any(value != paper for value, paper in lengths.items()):
        pairs = ", ".join(f"{value} here is {paper} in the paper" for value, paper in lengths.items())
        notes.append(f"{study.axis} compared with the paper: {pairs}")
    diverged = [
        f"{row.point.title}, seed {job.seed}: {n}" for row in study.rows for job in row.results for n in job.notes
    ]
    paper = [] if study.published is None else [f"about the paper's values: {note}" for note in study.published.notes]
    return [*notes, *study.notes, *diverged, *paper]


def _columns(study: Study) -> list[StudyColumn]:
    columns = [StudyColumn(study.axis, lambda row: row.point.value)]
    if study.variants != [""]:
        columns.append(StudyColumn("variant", lambda row: row.point.variant))
    columns.append(StudyColumn("seeds", lambda row: str(len(row.results))))
    for branch in BRANCHES:
        if any(row.branch(branch) for row in study.rows):
            columns.append(_branch_column(branch))
    branches = {branch: None for row in study.rows for branch in study.published_for(row.point)}
    columns += [_paper_column(study, branch) for branch in branches]
    return [
        *columns,
        StudyColumn("kl_to_uniform", _kl_text),
        StudyColumn("verdict", lambda row: row.verdict or _MISSING),
        StudyColumn("time per job", lambda row: _MISSING if row.seconds is None else duration(row.seconds)),
    ]


def _branch_column(branch: str) -> StudyColumn:
    def number(row: StudyRow) -> float | None:
        mean = row.branch(branch)
        return None if mean is None else round(mean.mean, 1)

    return StudyColumn(branch, lambda row: _mean_text(row.branch(branch)), number)


def _paper_column(study: Study, branch: str) -> StudyColumn:
    def number(row: StudyRow) -> float | None:
        return study.published_for(row.point).get(branch)

    def text(row: StudyRow) -> str:
        value = number(row)
        return _MISSING if value is None else f"{value:.2f}".removesuffix("0")

    return StudyColumn(f"paper, {branch}" if branch else "paper", text, number)


def _kl_text(row: StudyRow) -> str:
    share = "" if row.kl_share is None else f" ({row.kl_share:.2g}%)"
    return _MISSING if row.kl_to_uniform is None else f"{row.kl_to_uniform:.3g}{share}"


def _mean_text(mean: Mean | None) -> str:
    if mean is None:
        return _MISSING
    return f"{mean.mean:.1f}" + ("" if mean.deviation is None else f" ± {mean.deviation:.1f}")


def _is_best(study: Study, column: StudyColumn, row: StudyRow) -> bool:
    if column.number is None or (own := column.number(row)) is None:
        return False
    numbers = [column.number(other) for other in study.of_variant(row.point.variant)]
    found = [number for number in numbers if number is not None]
    return len(found) > 1 and own == max(found)


def _screen(study: Study, columns: Sequence[StudyColumn]) -> ScreenTable:
    table = ScreenTable(title=Text(f"{study.title}: k-NN top-1, %", style="italic"), title_justify="left")
    for column in columns:
        table.add_column(Text(column.heading), justify="left" if column.heading in {"variant", "verdict"} else "right")
    for row, after in zip(study.rows, (*study.rows[1:], None), strict=True):
        cells = [Text(printable(c.text(row)), style="bold" if _is_best(study, c, row) else "") for c in columns]
        table.add_row(*cells, end_section=after is not None and after.point.variant != row.point.variant)
    return table


def _bar(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.10g}"


def _or_empty(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
