"""The paper's ablations, to compare a study with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml


@dataclass(frozen=True)
class Series:
    """Published values in percent, by the value that they belong to.

    `branch` is `student` or `teacher` where the paper shows both, otherwise empty.
    """

    variant: str
    branch: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Published:
    """One ablation of the paper: its label in the source, its series, and notes."""

    label: str
    series: tuple[Series, ...]
    notes: tuple[str, ...]


@cache
def published_ablations() -> dict[str, Published]:
    """Return all ablations of the paper by name."""
    text = (resources.files("carp.studies") / "paper_ablations.yaml").read_text(encoding="utf-8")
    return {
        name: Published(
            table["label"],
            tuple(
                Series(
                    series.get("variant", ""),
                    series.get("branch", ""),
                    {str(value): float(number) for value, number in series["values"].items()},
                )
                for series in table["series"]
            ),
            tuple(table.get("notes", ())),
        )
        for name, table in yaml.safe_load(text).items()
    }
