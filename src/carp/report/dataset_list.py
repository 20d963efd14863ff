"""The table of `carp datasets` as text, with instructions to open or get each dataset."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from carp.images.sources.paper.paper_datasets import Dataset, ListedDataset, Split
from carp.report.tables.screen import plain_text

_HEADINGS = {"present": "present", "broken": "broken", "absent": "to get"}


def describe_datasets(listed: Sequence[ListedDataset], root: Path | None) -> str:
    """Return one row per dataset; for a folder `root`, also how to open its datasets and get the others."""
    table = Table(title="Datasets of the paper's evaluation")
    for name in ("name", "title" if root is None else "state", "classes", "train + test", "metric", "GB"):
        table.add_column(name, justify="right" if name in {"classes", "train + test", "GB"} else "left", no_wrap=True)
    for entry in listed:
        row = entry.dataset
        second = row.title if entry.found is None else entry.found.state
        classes, images = f"{row.classes:,}" if row.classes else "–", f"{row.train.images:,} + {row.test.images:,}"
        table.add_row(row.name, second, classes, images, row.metric, f"{row.gigabytes:g}")
    lines = plain_text(table).splitlines()
    lines.append("The metric is that of the literature; where that is not mAP, the paper reports top-1.")
    lines.append("Without classes: the images that are searched and the queries, in place of train and test.")
    for row in (entry.dataset for entry in listed):
        lists = [f"{name} ({subset.images:,} images)" for name, subset in row.lists.items()]
        lines += [f"{row.name} has published lists of some training images: {', '.join(lists)}."] if lists else []
    if root is None:
        lines.append("dataset:NAME:train and dataset:NAME:test, with root=FOLDER, open the splits of each.")
        return "\n".join([*lines, "Add --root FOLDER to see which of them are in a folder, and how to get the rest."])
    for state, heading in _HEADINGS.items():
        found = [entry for entry in listed if entry.found and entry.found.state == state]
        lines += ["", f"{heading}:"] if found else []
        lines += [f"  {entry.dataset.name}: {how_to_get(entry, root)}" for entry in found]
    return "\n".join(lines)


def how_to_get(listed: ListedDataset, root: Path) -> str:
    """Return how to open a dataset that is in a folder, or how to get it there."""
    row, presence = listed.dataset, listed.found
    assert presence is not None
    if presence.state == "present":
        names = [name for name in (presence.train, presence.test, *presence.lists) if name]
        return "   ".join([*names, shlex.quote(f"root={root}")])
    reason = f"{presence.reason}. " if presence.reason else ""
    how = row.how.replace("ROOT", shlex.quote(str(root)))
    if not row.download:
        return reason + how
    splits = ", ".join(repr(dict(split.arguments)) for split in _to_download(row))
    code = (
        f"from torchvision.datasets import {row.torchvision} as D; "
        f"[D({str(root / row.folder)!r}, download=True, **split) for split in [{splits}]]"
    )
    line = f"python -c {_in_double_quotes(code)}"
    return f"{reason}{line}{f'   ({how})' if how else ''}"


def _in_double_quotes(code: str) -> str:
    """Quote code for a shell. Unlike `shlex.quote`, this keeps single quotes inside readable."""
    for special in ("\\", '"', "$", "`"):
        code = code.replace(special, f"\\{special}")
    return f'"{code}"'


def _to_download(row: Dataset) -> list[Split]:
    return [row.train, row.test] if row.train.arguments != row.test.arguments else [row.train]
