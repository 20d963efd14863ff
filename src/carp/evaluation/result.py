"""What every protocol returns."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Result:
    """Named values (shares between 0 and 1) and the settings that made them.

    `spread` holds, under the same names, the deviation of those values that are means over several runs; `details`
    whatever lies behind the values: the runs one by one, the members of a grid, the counts of empty clusters.
    """

    protocol: str
    values: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def mean_and_deviation(runs: list[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and standard deviation (of the runs themselves: divided by their number) of every name."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return (
        {name: float(np.mean(column)) for name, column in columns.items()},
        {name: float(np.std(column)) for name, column in columns.items()},
    )
