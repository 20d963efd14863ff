"""The model card of an exported encoder: what it is, how it was trained, what was measured, how to load it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from carp.console.printable import printable
from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.hf_folder import CARD, PLOT
from carp.evaluation.result import Result
from carp.report.run_page.run_records import RunRecords
from carp.runs.run_folder import Run

_FRONT = """---
library_name: timm
pipeline_tag: image-feature-extraction
tags:
- image-feature-extraction
- self-supervised
- carp
---
"""


def model_card(exportable: ExportableEncoder, run: Run | None) -> Mapping[str, bytes]:
    """Return the files of a card: its text and, for a run, the plot of its training."""
    parts = [_FRONT, _what(exportable, run), _use(exportable)]
    files: dict[str, bytes] = {}
    if run is not None:
        records = RunRecords(run)
        parts.append(_training(records))
        parts.append(_results(records.results))
        plot = run.folder / PLOT
        if plot.is_file():
            files[PLOT] = plot.read_bytes()
            parts.append(f"![Loss terms and validation during training]({PLOT})\n")
    parts.append(_origin())
    return {CARD: "\n".join(part for part in parts if part).encode(), **files}


def _what(exportable: ExportableEncoder, run: Run | None) -> str:
    about = f"{exportable.architecture}, {exportable.num_features} features, images of {exportable.size} pixels"
    if run is None:
        return f"# {exportable.architecture}\n\nAn image encoder ({about}).\n"
    return (
        f"# {_plain(run.folder.name)}\n\nAn image encoder ({about}), trained without labels by CARP "
        f"(Consistent Assignment of Views over Random Partitions).\n"
    )


def _use(exportable: ExportableEncoder) -> str:
    return f"""## Use
```python
import timm
encoder = timm.create_model("hf_hub:OWNER/NAME", pretrained=True).eval()   # or "local-dir:FOLDER"
```
`transformers.AutoModel.from_pretrained` reads it as well. Images: values between 0 and 1, minus
{list(exportable.mean)}, divided by {list(exportable.std)}. {exportable.resize_rule}.
"""


def _training(records: RunRecords) -> str:
    data, changed = records.run.info["data"], [row for row in records.settings if row.changed]
    lines = [
        "## Training",
        f"{data['images']:,} images of `{_plain(data['name'])}`, {records.config.epochs} epochs.",
        "",
        "| setting | value |",
        "| --- | --- |",
        *(f"| `{row.name}` | {_plain(row.value)} |" for row in changed),
        "",
    ]
    if verdicts := records.history:
        lines += [f"Diagnosis at the end: **{verdicts[0].name}**, {_plain(verdicts[0].cause)}", ""]
    return "\n".join(lines)


def _results(results: Sequence[Result]) -> str:
    """Return one row per value; nothing has been measured if there are none."""
    if not results:
        return "## Results\nNone were measured: `carp eval` measures and records them.\n"
    lines = ["## Results", "| protocol | images | encoder | measure | value |", "| --- | --- | --- | --- | --- |"]
    for result in results:
        place = _plain(str(result.data.get("name") or Path(str(result.data.get("train", ""))).name))
        lines += [
            f"| {result.protocol} | {place} | {_plain(result.model_name)} | {name} | {value:.4g} |"
            for name, value in result.values.items()
        ]
    return "\n".join([*lines, ""])


def _origin() -> str:
    return (
        "## Method\nSilva and Ramírez Rivera, *Representation Learning via Consistent Assignment of Views over Random "
        "Partitions*, NeurIPS 2023 (arXiv:2310.12692). The weights have no licence yet: add one before you publish "
        "them.\n"
    )


def _plain(text: str) -> str:
    """Return text for a cell of a Markdown table."""
    return printable(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
