"""The plan of `carp eval paper` as text: the time of every table, and how to get the missing data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from carp.console.quantities import counted, duration
from carp.evaluation.paper_tables.plan import Evaluation
from carp.report.dataset_list import how_to_get
from carp.report.tables.screen import plain_text


def describe_plan(groups: Mapping[str, Sequence[Evaluation]], root: Path) -> list[str]:
    """Return one line per group of tables, the total, and one line per dataset that is missing or cannot be read.

    Args:
        groups: Evaluations by the names of the tables that share them, in the order in which they run.
        root: The folder of datasets.
    """
    table = Table(title="Tables of the paper, the quickest first")
    for name in ("tables", "datasets", "images", "done", "time"):
        table.add_column(name, justify="left" if name == "tables" else "right", no_wrap=True)
    every = {one.pair: one for group in groups.values() for one in group}
    for names, group in groups.items():
        usable = [one for one in group if one.state in {"to do", "done"}]
        done = sum(one.state == "done" for one in group)
        table.add_row(
            names,
            f"{len(usable)} of {len(group)}",
            f"{sum(one.images for one in usable):,}",
            str(done),
            _time(group) if usable else "–",
        )
    lines = [*plain_text(table).splitlines(), f"in total: {_total(list(every.values()), root)}"]
    for heading, state in (("missing", "absent"), ("cannot be read", "broken")):
        entries = {one.name: one.dataset for one in every.values() if one.state == state}
        lines += [f"{heading}: {name}: {how_to_get(entry, root)}" for name, entry in entries.items()]
    return lines


def _total(every: Sequence[Evaluation], root: Path) -> str:
    to_do = [one.seconds for one in every if one.state == "to do"]
    if to_do:
        return (
            f"{counted(len(to_do), 'evaluation')} to do, about {duration(sum(to_do))} "
            "(measured on a few images; features that are stored already take no time)"
        )
    return "all is done" if any(one.state == "done" for one in every) else f"{root} has none of the datasets"


def _time(group: Sequence[Evaluation]) -> str:
    to_do = [one.seconds for one in group if one.state == "to do"]
    return duration(sum(to_do)) if to_do else "done"
