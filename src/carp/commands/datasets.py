"""`carp datasets`: the data sets of the paper, which of them are there, and how to get the rest."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from carp.errors import DataError
from carp.images.sources.paper.paper_datasets import DATASETS, Dataset, Presence, Split
from carp.report.tables.screen import plain_text


def list_datasets(root: Path | None = None) -> str:
    """Every row as JSON, with what was found below `root`."""
    found = _look_everywhere(root)
    return json.dumps([_as_json(row, found.get(row.name)) for row in DATASETS], indent=1)


def describe_datasets(root: Path | None = None) -> str:
    """The table as text; with `root` what is there, how to name it, and how to get the rest."""
    found = _look_everywhere(root)
    table = Table(title="Data sets of the paper's evaluation")
    for name in ("name", "state" if found else "title", "classes", "train + test", "metric", "GB"):
        table.add_column(name, justify="right" if name in {"classes", "train + test", "GB"} else "left", no_wrap=True)
    for row in DATASETS:
        second = found[row.name].state if found else row.title
        images = f"{row.train.images:,} + {row.test.images:,}"
        table.add_row(row.name, second, f"{row.classes:,}", images, row.metric, f"{row.gigabytes:g}")
    lines = plain_text(table).splitlines()
    lines.append("The metric is that of the literature; the paper reports top-1, and mAP on VOC07.")
    for row in DATASETS:
        lists = [f"{name} ({part.images:,} images)" for name, part in row.lists.items()]
        lines += [f"{row.name} has published lists of a part: {', '.join(lists)}."] if lists else []
    if root is None:
        lines.append("dataset:NAME:train and dataset:NAME:test, with root=FOLDER, open the parts of each.")
        return "\n".join([*lines, "With --root FOLDER: what is in that folder, and how to get the rest."])
    return "\n".join([*lines, *_below(found, root)])


def _below(found: dict[str, Presence], root: Path) -> list[str]:
    """What to do with every data set."""
    lines = []
    for state, heading in (("present", "present"), ("broken", "broken"), ("absent", "to get")):
        rows = [row for row in DATASETS if found[row.name].state == state]
        lines += ["", f"{heading}:"] if rows else []
        for row in rows:
            lines.append(f"  {row.name}: {_advice(row, found[row.name], root)}")
    return lines


def _advice(row: Dataset, presence: Presence, root: Path) -> str:
    if presence.state == "present":
        return "   ".join([presence.train, presence.test, *presence.lists, shlex.quote(f"root={root}")])
    reason = f"{presence.reason}. " if presence.reason else ""
    how = row.how.replace("ROOT", shlex.quote(str(root)))
    if not row.download:
        return reason + how
    parts = ", ".join(repr(dict(part.arguments)) for part in _to_download(row))
    code = (
        f"from torchvision.datasets import {row.torchvision} as D; "
        f"[D({str(root / row.folder)!r}, download=True, **part) for part in [{parts}]]"
    )
    line = f"python -c {_in_double_quotes(code)}"
    return f"{reason}{line}{f'   ({how})' if how else ''}"


def _in_double_quotes(code: str) -> str:
    """For a shell; single quotes stay readable inside, which `shlex.quote` would not leave."""
    for special in ("\\", '"', "$", "`"):
        code = code.replace(special, f"\\{special}")
    return f'"{code}"'


def _to_download(row: Dataset) -> list[Split]:
    return [row.train, row.test] if row.train.arguments != row.test.arguments else [row.train]


def _look_everywhere(root: Path | None) -> dict[str, Presence]:
    if root is None:
        return {}
    if not root.is_dir():
        raise DataError(f"--root {root} is not a folder: give the folder that holds the data sets.")
    from carp.images.sources.paper.dataset_source import (
        look,  # imports torchvision: seconds, and the table alone does not need it
    )

    return {row.name: look(row, root) for row in DATASETS}


def _as_json(row: Dataset, presence: Presence | None) -> dict[str, Any]:
    parts = {
        part: {
            "word": split.word,
            "source": row.source(part),
            "arguments": dict(split.arguments),
            "images": split.images,
        }
        for part, split in (("train", row.train), ("test", row.test))
    }
    lists = {word: {"source": row.source(word), **asdict(subset)} for word, subset in row.lists.items()}
    fields = {key: getattr(row, key) for key in row.__dataclass_fields__} | parts | {"lists": lists}
    return fields | ({"found": asdict(presence)} if presence else {})
