"""`carp eval paper`: every table of the paper whose datasets are in a folder, next to the published numbers."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carp.compute import distributed
from carp.console.progress import Display
from carp.errors import DataError
from carp.evaluation.paper_tables.execution import FailedEvaluation, run_evaluations
from carp.evaluation.paper_tables.plan import Evaluation, plan
from carp.evaluation.runner import RESULTS
from carp.evaluation.workspace import output_folder
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.files.outputs import check_output_folder
from carp.images.sources.paper.dataset_source import datasets_folder
from carp.report.paper_plan import describe_plan
from carp.report.tables.compose import compose, only_measured
from carp.report.tables.join import Source, Table
from carp.report.tables.paper import Layout, evaluation_layouts, layout
from carp.runs.epoch_argument import at_epoch

_PAPER_SIZE = 224  # pixels


@dataclass(frozen=True)
class EvaluatedPaper:
    """The evaluations behind the paper's tables, and the tables."""

    evaluations: tuple[Evaluation, ...]
    """In the order in which they run; each has a `result`, or a `state` that explains why not."""
    tables: Mapping[str, Table]
    """Tables with at least one result, by name."""
    failed: tuple[FailedEvaluation, ...]
    """Evaluations that ended with an error."""
    plan: tuple[str, ...]
    """The plan and the estimated times, as text."""
    notes: tuple[str, ...] = ()
    """Remarks on the results."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed. Missing datasets are not failures."""
        return not self.failed

    def all_notes(self) -> list[str]:
        """Return notes on the results and on the tables, without repetition."""
        return list(dict.fromkeys([*self.notes, *(note for table in self.tables.values() for note in table.notes)]))


def evaluate_paper(
    model: str | Path,
    root: str | Path,
    *,
    only: str | Sequence[str] = (),
    preset: str = "paper",
    dry_run: bool = False,
    branch: str = "teacher",
    epoch: int | None = None,
    out: str | Path | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    precision: Precision = "fp32",
    device: str = "auto",
    quiet: bool = True,
) -> EvaluatedPaper:
    """Evaluate an encoder as in the paper's tables, the quickest table first, and compare it with the published rows.

    A result that exists already, of the same weights with the same settings, is not computed again, so the same call
    resumes after an interruption. An evaluation that fails does not stop the others.

    Args:
        model: A run folder, `RUN@25`, or weights of another method (`swav:FILE`; `carp weights`).
        root: The folder of datasets; `datasets(root)` lists what it contains and how to get the rest.
        only: Names of tables, such as `knn` or `kmeans`; by default all.
        preset: Settings of the protocols: `paper`, or `authors` for those of the authors' code where it differs.
        dry_run: Only plan; evaluate nothing and compose no tables.
        branch: Encoder of a run: `teacher`, `student`, `untrained` or `raw pixels`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        out: Folder for `features` and `results`. None is the run folder or, for weights, a folder named after them in
            the current directory.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        precision: Precision of the encoder, `fp32` or `bf16`.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show neither the plan nor progress.

    Returns:
        The tables, the evaluations behind them, and what failed.
    """
    model = at_epoch(model, epoch)
    wanted = _wanted([only] if isinstance(only, str) else only)
    folder, results = datasets_folder(root), output_folder(model, out) / RESULTS
    if not dry_run:
        check_output_folder(results.parent)
    options = FeatureOptions(layer=layer, size=size, resize=resize, precision=precision, root=folder, device=device)
    pairs = dict.fromkeys(pair for table in wanted for pair in table.evaluations)
    planned = plan(pairs, model, folder, preset=preset, branch=branch, options=options, results=results)
    groups = _groups(wanted, planned)
    described = tuple(describe_plan(groups, folder))
    ordered = tuple(dict.fromkeys(one.pair for group in groups.values() for one in group))
    by_pair = {one.pair: one for one in planned}
    evaluations = tuple(by_pair[pair] for pair in ordered)
    if dry_run:
        return EvaluatedPaper(evaluations, {}, (), described)
    if all(one.state == "absent" for one in evaluations):
        raise DataError(
            f"there is no data for {', '.join(table.name for table in wanted)} in {root}. `carp datasets --root "
            f"{shlex.quote(str(root))}` shows how to get it."
        )
    display = Display(quiet=quiet or not distributed.is_first())
    for line in described:
        display.say(line)
    ran = run_evaluations(evaluations, model, branch=branch, out=out, quiet=quiet)
    tables = _tables(wanted, ran.evaluations, only)
    notes = (*ran.notes, *_other_sizes(ran.evaluations))
    return EvaluatedPaper(ran.evaluations, tables, ran.failed, described, notes)


def _wanted(only: Sequence[str]) -> list[Layout]:
    known = evaluation_layouts()
    return [layout(name, known) for name in dict.fromkeys(only)] or list(known.values())


def _groups(wanted: Sequence[Layout], planned: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Tables that need the same evaluations, the quickest first, each with its evaluations in the same order."""
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for table in wanted:
        names.setdefault(tuple(sorted(table.evaluations)), []).append(table.name)
    by_pair = {one.pair: one for one in planned}
    groups = {
        ", ".join(tables): sorted((by_pair[pair] for pair in pairs), key=lambda one: one.seconds)
        for pairs, tables in names.items()
    }
    return dict(sorted(groups.items(), key=lambda item: _place(item[1])))


def _place(group: Sequence[Evaluation]) -> tuple[bool, float]:
    """Tables without data come last."""
    return all(one.state in {"absent", "broken"} for one in group), sum(one.seconds for one in group)


def _other_sizes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a note if the size of the images differs from the paper's."""
    used = {one.result.settings.get("size", _PAPER_SIZE) for one in evaluations if one.result is not None}
    return [
        f"images of {size} × {size} pixels were encoded; the published values are for {_PAPER_SIZE} × {_PAPER_SIZE}."
        for size in sorted(used - {_PAPER_SIZE})
    ]


def _tables(wanted: Sequence[Layout], evaluations: Sequence[Evaluation], only: str | Sequence[str]) -> dict[str, Table]:
    """Compose the tables that have results. Of two with the same columns, keep only the one with more rows."""
    have = [one for one in evaluations if one.result is not None]
    longest = {table.columns: table.name for table in sorted(wanted, key=lambda table: len(table.rows))}
    made = {}
    for table in wanted:
        sources = [
            Source(one.result, one.title, one.result.created)
            for one in have
            if one.result is not None and one.pair in table.evaluations
        ]
        if sources and (only or longest[table.columns] == table.name):
            made[table.name] = only_measured(compose(sources, table, with_paper=True, difference=True))
    return made
